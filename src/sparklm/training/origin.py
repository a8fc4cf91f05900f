"""What a run begins from, where that is a model and not chance: its settings, and its weights in the run's own folder.

The weights (and the optimizer's state, if that is asked for) are written to `init.safetensors` when the run begins. All
replicas, wherever and whenever they are made, read that file, so the model itself may be gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparklm.config import Config
from sparklm.config.resolve import ModelSettings
from sparklm.errors import UserError
from sparklm.models.build import outline
from sparklm.models.model_zip import describe_model, load_model
from sparklm.models.registry import ARCHITECTURES
from sparklm.models.shape import ModelShape
from sparklm.storage import Folder
from sparklm.text.shards import TOKENIZER
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.checkpoint.files import save_tensors
from sparklm.training.run import (
    CONFIG,
    INIT,
    MODEL_STATE,
    OPTIMIZER_STATE,
    RUN_FORMAT,
    BegunFrom,
    Run,
    read_embeddings,
    read_model_step,
    read_run,
)
from sparklm.training.sync.finish import resume_replica
from sparklm.training.tensors import prefixed

_LONGEST_WINDOW = 1024  # of a model with a longer context, unless data.window_size says otherwise


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """A model to begin from, without its weights."""

    shape: ModelShape
    tokenizer_address: str
    tokenizer_size: int
    run: Run | None  # that made it, where a run is what was given


@dataclass(frozen=True, kw_only=True)
class _State:
    """What is taken from a model, and how far the run that made it had come, where known."""

    tensors: dict[str, Tensor]
    vocab_size: int
    run_id: str | None
    step: int | None


def read_model_settings(address: str, with_optimizer: bool) -> ModelSettings:
    """The settings that a run takes from the model that it begins from."""
    origin = _find_origin(address, with_optimizer)
    shape, kind = origin.shape, ARCHITECTURES[origin.shape.architecture]
    names = ["architecture", "num_layers", "width", "embedding_size", "context_length", "tie_embeddings", "positions"]
    names += ["norm_epsilon", *(["rope_base"] if shape.positions == "rotary" else [])]
    names += ["num_heads", "head_size"] if kind.has_heads else []
    names += ["num_kv_heads"] if kind.has_kv_heads else []
    names += ["feedforward_size"] if kind.has_feedforward else []
    fixed: dict[str, object] = {f"model.{name}": getattr(shape, name) for name in names}
    fixed |= {"training.objective": shape.objective.kind}
    fixed |= {"data.tokenizer": origin.tokenizer_address, "data.embeddings": None}
    if shape.predicts_embedding:
        fixed["training.embedding_loss"] = shape.objective.embedding_loss
        fixed["metrics.similarity_threshold"] = shape.objective.similarity_threshold
    if with_optimizer and origin.run is not None:
        fixed["training.optimizer"] = origin.run.config.training.optimizer
    window = {"data.window_size": _window_size(origin)}
    return ModelSettings(fixed=fixed, suggested=window, vocab_size=origin.tokenizer_size)


def origin_vocab_size(config: Config) -> int | None:
    """The number of token ids of the model that a config begins from; None where it begins from none."""
    address, with_optimizer = config.training.init_from, config.training.init_optimizer
    return None if address is None else _find_origin(address, with_optimizer).shape.vocab_size


def write_first_state(address: str, config: Config, folder: Folder) -> BegunFrom:
    """Write the weights of the model that a run begins from into the run's folder, and tell what they are."""
    with_optimizer = config.training.init_optimizer
    state = _state_of_checkpoint(address) if with_optimizer else _state_of_model(address)
    tensors = _fitting(state.tensors, ModelShape.from_config(config, state.vocab_size), address)
    saved = save_tensors(folder, INIT.removesuffix(".safetensors"), tensors)
    return BegunFrom(
        address=address,
        sha256=saved.sha256,
        vocab_size=state.vocab_size,
        run_id=state.run_id,
        step=state.step,
        with_optimizer=with_optimizer,
    )


def _find_origin(address: str, with_optimizer: bool) -> _Origin:
    if not with_optimizer:
        model = describe_model(address)
        return _Origin(
            shape=model.shape,
            tokenizer_address=model.tokenizer_address,
            tokenizer_size=model.tokenizer.vocab_size,
            run=_find_run(address),
        )
    run = _run_to_go_on_from(address)
    dataset = run.open_dataset()
    vocab_size = run.vocab_size(dataset.manifest.vocab_size)
    return _Origin(
        shape=ModelShape.from_config(run.config, vocab_size, read_embeddings(run)),
        tokenizer_address=dataset.folder.address(TOKENIZER),
        tokenizer_size=dataset.manifest.vocab_size,
        run=run,
    )


def _find_run(address: str) -> Run | None:
    """The run at an address, if it is one: the folder of an unpacked model has a config.json as well."""
    folder = Folder(address)
    config = folder.read_json(CONFIG) if folder.exists(CONFIG) else None
    return read_run(folder) if isinstance(config, dict) and config.get("format") == RUN_FORMAT else None


def _run_to_go_on_from(address: str) -> Run:
    """The run whose optimizer's state is wanted; what is no run, or has no such state, is refused."""
    run = _find_run(address)
    if run is None:
        raise UserError(f"--init-optimizer needs the folder of a run, and {address} is none; leave it out, or give one")
    if latest_step(run.folder) == 0:
        raise UserError(
            f"{address} has no checkpoint, so the state of its optimizer is not known; leave --init-optimizer out to "
            "begin from its model alone"
        )
    return run


def _window_size(origin: _Origin) -> int:
    if origin.run is not None:
        return origin.run.config.data.window_size
    length = origin.shape.context_length
    return length if origin.shape.predicts_last_only else min(length, _LONGEST_WINDOW)


def _state_of_model(address: str) -> _State:
    """The weights of a finished model."""
    run, model = _find_run(address), load_model(address).model
    return _State(
        tensors=prefixed(MODEL_STATE, model.state_dict()),
        vocab_size=model.shape.vocab_size,
        run_id=None if run is None else run.run_id,
        step=None if run is None else read_model_step(run.folder),
    )


def _state_of_checkpoint(address: str) -> _State:
    """The weights and the optimizer's state of a run's first replica, as it would go on from the newest checkpoint."""
    run = _run_to_go_on_from(address)
    replica = resume_replica(run, latest_step(run.folder), number=0)
    model, optimizer = replica.model, replica.optimizer
    return _State(
        tensors=prefixed(MODEL_STATE, model.state_dict()) | prefixed(OPTIMIZER_STATE, optimizer.tensors(model)),
        vocab_size=model.shape.vocab_size,
        run_id=run.run_id,
        step=replica.step,
    )


def _fitting(tensors: dict[str, Tensor], shape: ModelShape, address: str) -> dict[str, Tensor]:
    """The tensors for a network of a shape: all of its weights, and the state of those that learn."""
    network = outline(shape)
    weights = {f"{MODEL_STATE}{name}": tensor.shape for name, tensor in network.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items() if name.startswith(MODEL_STATE)}
    if weights != found:
        name = min(name for name in weights.keys() | found.keys() if weights.get(name) != found.get(name))
        raise UserError(f"{address} does not fit the settings of the model: {name.removeprefix(MODEL_STATE)} differs")
    learning = {name for name, parameter in network.named_parameters() if parameter.requires_grad}

    def is_wanted(name: str) -> bool:
        return name in weights or name.removeprefix(OPTIMIZER_STATE).rpartition("/")[0] in learning

    return {name: tensor for name, tensor in tensors.items() if is_wanted(name)}
