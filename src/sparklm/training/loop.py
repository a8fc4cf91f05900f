"""One replica that learns: the step, the round, the evaluation.

Everything a step depends on is in the checkpoint (weights, optimiser state, averaged weights) or is a pure function
of the step (its windows, its learning rate, its dropout), so a replica may stop after any round and go on in another
process with the same bits, as long as the number of threads is the same.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from sparklm.config import Config
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.models import build_model
from sparklm.models.network import LanguageModel
from sparklm.models.objectives import Tally, batch_loss
from sparklm.text.shards import Dataset, TokenStream
from sparklm.text.windows import Int64Array, WindowPlan, Windows, derive_seed
from sparklm.training.metrics import EpochTotals, Evaluation
from sparklm.training.optim import average_decay, build_optimizer, learning_rate
from sparklm.training.readahead import read_ahead
from sparklm.training.strategies import Round

EVALUATION_BATCH_SIZE = 32
_INITIALISATION, _DROPOUT = 1, 2  # what a derived seed is for
_AFTER_DIVERGENCE = "What was saved before is good. Begin a new run (another --run) with a lower training.learning_rate"
StepCallback = Callable[[int, float], None]  # called with the step just done and its loss


class Trainer:
    """A model, its optimiser, the average of its weights if one is kept, and the plan of what it sees."""

    def __init__(self, config: Config, dataset: Dataset, plan: WindowPlan, embeddings_VE: Tensor | None = None) -> None:
        self.config, self.dataset, self.plan = config, dataset, plan
        self.device = choose_device(config.training.device)
        check_precision(config.training.precision, self.device)
        self.step = 0
        self.totals = EpochTotals()
        seed = _torch_seed(config.training.seed, _INITIALISATION)
        self.model = build_model(config, dataset.manifest.vocab_size, embeddings_VE, seed=seed).to(self.device)
        self.optimizer = build_optimizer(self.model, config.training)
        self.average: dict[str, Tensor] = {}
        data = config.data
        self._train_windows = dataset.windows(dataset.train, data, data.window_stride)
        # A network with an output at every position scores every token once in windows that do not overlap.
        stride = data.window_stride if self.model.shape.predicts_last_only else data.window_size
        self._validation_windows = dataset.windows(dataset.validation, data, stride)

    def run(self, round_: Round, on_step: StepCallback | None = None) -> Evaluation | None:
        """Do a round's steps; evaluate where it ends an epoch and there is validation text."""
        assert round_.start == self.step, f"round starts at step {round_.start}, the replica is at {self.step}"
        if self.plan.epoch_of(self.step - 1) != round_.epoch or self.step == 0:
            self.totals = EpochTotals()
        begun = time.perf_counter()
        self.model.train()
        ahead = self.config.distributed.prefetch_batches
        for windows in read_ahead(lambda step: self._read(step, round_.replica), self.step, round_.stop, ahead):
            loss = self._train_step(windows, round_.replica)
            if on_step is not None:
                on_step(self.step, loss)
        elapsed = time.perf_counter() - begun
        self.totals = self.totals.model_copy(update={"seconds": self.totals.seconds + elapsed})
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise TrainingDivergedError(
                f"training diverged: step {self.step - 1} made a weight infinite or not a number, at learning rate "
                f"{self.totals.learning_rate:g}. {_AFTER_DIVERGENCE}"
            )
        if not round_.ends_epoch:
            return None
        with self._averaged_weights():
            return evaluate(self.model, self.dataset.validation, self._validation_windows, self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Give all that must survive: `model/…`, `optimizer/…` and, if there is one, `average/…`."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.tensors(self.model),
            "average": self.average,
        }
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def restore(self, *, step: int, tensors: dict[str, Tensor], totals: EpochTotals) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(tensors_below(tensors, "model/"))
        self.optimizer.load_tensors(self.model, tensors_below(tensors, "optimizer/"))
        average = tensors_below(tensors, "average/")
        self.average = {name: tensor.to(self.device, copy=True) for name, tensor in average.items()}
        self.step, self.totals = step, totals

    def _train_step(self, windows: Int64Array, replica: int) -> float:
        rate = learning_rate(self.step, self.plan.total_steps, self.config.training)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.config.model.dropout:
            torch.manual_seed(_torch_seed(self.config.training.seed, _DROPOUT, self.step, replica))
        tally = self._accumulate_gradients(torch.from_numpy(windows).to(self.device))
        clip = self.config.training.gradient_clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip if clip is not None else math.inf)
        loss, gradient_norm = tally.loss, norm.item()
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise TrainingDivergedError(
                f"training diverged at step {self.step}: loss {loss:.4g}, gradient norm {gradient_norm:.4g}, "
                f"learning rate {rate:g}. Stopped before this update. {_AFTER_DIVERGENCE}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._update_average()
        self.totals = self.totals.with_step(
            loss=loss,
            correct=tally.correct,
            nearest=tally.nearest,
            targets=tally.targets,
            tokens=self.plan.batch_size * self.config.data.window_size,
            gradient_norm=gradient_norm,
            learning_rate=rate,
        )
        self.step += 1
        return loss

    def _read(self, step: int, replica: int) -> Int64Array:
        starts = self._train_windows.starts(self.plan.windows(step, replica))
        return self.dataset.train.windows(starts, self._train_windows.window_size)

    def _accumulate_gradients(self, windows: Tensor) -> Tally:
        """Add up the gradients of a step's batches."""
        training, tally = self.config.training, Tally()
        for part in torch.split(windows, training.batch_size):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=training.precision == "bf16"):
                batch = batch_loss(self.model, part, training.label_smoothing)
            (batch.loss * (len(part) / len(windows))).backward()  # type: ignore[no-untyped-call]
            tally.add(batch)
        return tally

    @torch.no_grad()
    def _update_average(self) -> None:
        """Move the averaged weights a little towards the new ones."""
        if self.config.training.ema_decay is None:
            return
        decay = average_decay(self.step, self.config.training.ema_decay)
        for name, tensor in self.model.state_dict().items():
            if name in self.average:
                self.average[name].lerp_(tensor, 1.0 - decay)
            else:
                self.average[name] = tensor.clone()

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Put the averaged weights, if there are any, in the place of the last ones for a while."""
        if not self.average:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        try:
            yield
        finally:
            self.model.load_state_dict(own)


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    stream: TokenStream,
    windows: Windows,
    device: torch.device,
    batch_size: int = EVALUATION_BATCH_SIZE,
) -> Evaluation | None:
    """Score the targets of a stream's windows; None when there is no window."""
    num_windows = windows.num_windows
    if num_windows == 0:
        return None
    was_training = model.training
    model.eval()
    tally = Tally()
    for first in range(0, num_windows, batch_size):
        starts = windows.starts(np.arange(first, min(first + batch_size, num_windows)))
        tally.add(batch_loss(model, torch.from_numpy(stream.windows(starts, windows.window_size)).to(device)))
    model.train(was_training)
    return Evaluation(
        loss=tally.loss,
        accuracy=tally.correct / tally.targets,
        nearest_accuracy=tally.nearest / tally.targets,
        tokens=tally.targets,
        is_probability=not model.shape.predicts_embedding,
    )


def choose_device(wanted: str) -> torch.device:
    """Pick the device: a GPU if there is one and it is not ruled out."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise UserError("training.device = 'cuda', but torch finds no GPU here; use 'cpu' or 'auto'")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse bfloat16 on processors that would only emulate it, many times slower than float32."""
    if precision == "bf16" and device.type == "cpu" and not has_fast_bfloat16():
        raise UserError(
            "training.precision = 'bf16', but this processor has no bfloat16 arithmetic (AVX512_BF16 or AMX) and would "
            "be tens to hundreds of times slower than with 'fp32'; use 'fp32', or a GPU"
        )


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def use_threads(threads: int) -> None:
    """Set how many CPU threads torch uses, whatever the environment of this process says."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(psutil.Process(os.getpid()).memory_info().rss)


def final_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take from a checkpoint what becomes the model: the averaged weights where an average is kept."""
    return tensors_below(tensors, "average/") or tensors_below(tensors, "model/")


def tensors_below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take one part of what `Trainer.tensors` gave, its names without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _torch_seed(seed: int, *parts: int) -> int:
    return derive_seed(seed, *parts) % 2**63
