"""One replica that learns: the step, the round, the evaluation.

Everything a step depends on is in the checkpoint (weights, optimiser state, averaged weights) or is a pure function
of the step (its windows, its learning rate, its dropout), so a replica may stop after any round and go on in another
process with the same bits, as long as the number of threads is the same.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psutil
import torch
from torch import Tensor, nn

from sparklm.config import Config
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.evaluation import tally_windows
from sparklm.logs import TRACE
from sparklm.models.build import build_model
from sparklm.models.objectives import Tally, batch_loss
from sparklm.text.shards import Dataset
from sparklm.text.windows import Int64Array, WindowPlan, derive_seed
from sparklm.training.epoch_log import NUM_LOGGING_REPLICAS, EpochTotals
from sparklm.training.optim import build_optimizer
from sparklm.training.phases import Phase, PhaseClock, StepProgress, add_phases, working_seconds
from sparklm.training.readahead import read_ahead
from sparklm.training.records import StepRecord
from sparklm.training.schedule import average_decay, learning_rate
from sparklm.training.sync.codec import Codec, copied, flatten, unflatten
from sparklm.training.sync.rounds import Round, outer_step

_logger = logging.getLogger(__name__)
_INITIALISATION, _DROPOUT = 1, 2  # what a derived seed is for
_AFTER_DIVERGENCE = "What was saved before is good. Begin a new run (another --run) with a lower training.learning_rate"
_MOST_LOGGED_STEPS = 1000  # of an epoch
StepCallback = Callable[[StepProgress], None]  # called after every step


class Trainer:
    """One replica: a model, its optimiser, the average of its weights if one is kept, and the plan of what it sees.

    With several replicas, every round is followed by a meeting: `give` says what this replica has to give, `take` goes
    on with the mean of what all have given. A checkpoint is what a replica is *between* the two, and the mean.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        plan: WindowPlan,
        embeddings_VE: Tensor | None = None,
        replica: int = 0,
    ) -> None:
        self.config, self.dataset, self.plan, self.replica = config, dataset, plan, replica
        self.device = choose_device(config.training.device)
        check_precision(config.training.precision, self.device)
        self.step = 0
        self.totals = EpochTotals()
        self.steps: list[StepRecord] = []  # those of this epoch that are logged
        self.clock = PhaseClock()
        self._logged_at = 0.0, 0  # seconds of work and tokens of this epoch, when a step was last logged
        self._log_every = max(config.output.log_every_steps, -(-plan.epoch_end(0) // _MOST_LOGGED_STEPS))
        seed = _torch_seed(config.training.seed, _INITIALISATION)
        self.model = build_model(config, dataset.manifest.vocab_size, embeddings_VE, seed=seed).to(self.device)
        self.optimizer = build_optimizer(self.model, config.training)
        self.average: dict[str, Tensor] = {}
        self._learned = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.codec = Codec(
            kind=config.distributed.compress, num_lossy=sum(weight.numel() for weight in self._learned.values())
        )
        self.meets = config.distributed.replicas > 1
        self._gives_gradients = config.distributed.gives_gradients
        self._gives_changes = self.meets and not self._gives_gradients
        self.awaits_mean = False  # between `run` and `take`
        self._met_at_step = 0
        self._met_at = flatten(self._learned.values()) if self._gives_changes else None
        self._outer_momentum: Tensor | None = None
        self._unsaid: Tensor | None = None  # what compression has kept from the others so far
        data = config.data
        self._train_windows = dataset.windows(dataset.train, data, data.window_stride)
        # A network with an output at every position scores every token once in windows that do not overlap.
        stride = data.window_stride if self.model.shape.predicts_last_only else data.window_size
        self._validation_windows = dataset.windows(dataset.validation, data, stride)

    def run(self, round_: Round, on_step: StepCallback | None = None) -> None:
        """Do a round's steps: the whole of them, or, where gradients are shared, up to the gradient."""
        assert round_.start == self.step, f"round starts at step {round_.start}, the replica is at {self.step}"
        if self.plan.epoch_of(self.step - 1) != round_.epoch or self.step == 0:
            self.totals, self.steps, self._logged_at = EpochTotals(), [], (0.0, 0)
        begun, begun_cpu = time.perf_counter(), time.process_time()
        length = {"epoch": round_.epoch + 1, "steps": round_.stop - round_.start}
        _logger.info("round begins", extra=self._figures(**length))
        logs_steps = _logger.isEnabledFor(TRACE)
        self.model.train()
        ahead = self.config.distributed.prefetch_batches
        with closing(read_ahead(self._read, self.step, round_.stop, ahead)) as batches:
            while self.step < round_.stop:
                with self.clock("data"):
                    windows = next(batches)
                with self.clock("fit"):
                    loss = self._compute_gradient(windows)
                    if not self._gives_gradients:
                        self._update(self.step, loss=loss)
                self.step += 1
                if not self._gives_gradients:
                    self._log_step()
                if logs_steps:
                    _logger.log(TRACE, "step done", extra=self._figures(loss=loss))
                if on_step is not None:
                    on_step(self._progress())
        self.awaits_mean = self.meets
        seconds = time.perf_counter() - begun
        self.totals = self.totals.plus(seconds=seconds, cpu_seconds=time.process_time() - begun_cpu)
        _logger.info("round ends", extra=self._figures(**length, seconds=seconds, loss=loss))
        if not self._gives_gradients:
            self.check_weights()

    @torch.no_grad()
    def give(self) -> Tensor:
        """Give what this replica has for the meeting, as the others will see it."""
        begun = time.perf_counter()
        vector = self._to_give()
        num_bytes, seconds = self.codec.encoded_bytes(vector.numel()), time.perf_counter() - begun
        _logger.debug("replica gives", extra=self._figures(bytes=num_bytes, seconds=seconds))
        return vector

    def _to_give(self) -> Tensor:
        if self._gives_gradients:
            vector = flatten(
                weight.grad if weight.grad is not None else torch.zeros_like(weight)
                for weight in self._learned.values()
            )
        else:
            assert self._met_at is not None
            vector = self._met_at - flatten(self._learned.values())
            if self.config.distributed.gives_optimizer:
                vector = flatten([vector, *self.optimizer.tensors(self.model).values()])
        if self.codec.kind == "none":
            return vector
        if not vector.isfinite().all():  # compression would hide it
            raise TrainingDivergedError(
                f"training diverged at step {self.step - 1}: what this replica gives is no number. {_AFTER_DIVERGENCE}"
            )
        if self._unsaid is not None:
            vector[: self.codec.num_lossy] += self._unsaid
        heard = self.codec.round_trip(vector)
        self._unsaid = (vector - heard)[: self.codec.num_lossy]
        return heard

    @torch.no_grad()
    def take(self, mean: Tensor) -> None:
        """Go on from the mean of what all replicas have given."""
        begun = time.perf_counter()
        with self.clock("fit" if self._gives_gradients else "broadcast"):
            mean = mean.to(self.device)
            if self._gives_gradients:
                for name, gradient in unflatten(mean.clone(), self._learned).items():
                    self._learned[name].grad = gradient
                self._update(self.step - 1)
            else:
                self._apply_changes(mean)
                self.check_weights()
        if self._gives_gradients:
            self._log_step()
        taken_bytes, seconds = mean.numel() * mean.element_size(), time.perf_counter() - begun
        num_bytes = self.codec.encoded_bytes(mean.numel()) + taken_bytes
        self.totals = self.totals.plus(seconds=seconds, exchanged_bytes=num_bytes)
        self.awaits_mean = False
        _logger.debug("replica takes", extra=self._figures(bytes=taken_bytes, seconds=seconds))

    def settle_phases(self) -> None:
        """Add the times that were measured since the last time to the totals."""
        self.totals = self.totals.with_phases(self.clock.take())

    def evaluate_part(self, on_batch: Callable[[], None] | None = None) -> Tally:
        """Score this replica's share of the validation text with the weights that would become the model."""
        count, replicas = self._validation_windows.num_windows, self.config.distributed.replicas
        share = range(count * self.replica // replicas, count * (self.replica + 1) // replicas)
        with self.averaged_weights():
            return tally_windows(
                self.model, self.dataset.validation, self._validation_windows, self.device, share, on_batch
            )

    @property
    def shared_is_settled(self) -> bool:
        """Whether what all replicas share stays as it is while a round is done."""
        return self._gives_changes

    def shared_tensors(self) -> dict[str, Tensor]:
        """Give what is the same in all replicas and must survive."""
        if self._gives_changes:
            weights = {"met_at": self._met_at, "outer_momentum": self._outer_momentum}
            parts = {"outer": {name: value for name, value in weights.items() if value is not None}}
        else:
            parts = {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.tensors(self.model)}
        return _joined(parts | {"average": self.average})

    def own_tensors(self) -> dict[str, Tensor]:
        """Give what only this replica has and must survive."""
        keeps_optimizer = self._gives_changes and not self.config.distributed.gives_optimizer
        return _joined(
            {
                "optimizer": self.optimizer.tensors(self.model) if keeps_optimizer else {},
                "outer": {} if self._unsaid is None else {"unsaid": self._unsaid},
            }
        )

    def final_weights(self) -> dict[str, Tensor]:
        """Give what becomes the model: the averaged weights where an average is kept."""
        return self.average or self.model.state_dict()

    @torch.no_grad()
    def restore(self, *, step: int, tensors: dict[str, Tensor]) -> None:
        """Become what a replica was at a checkpoint, from its tensors, shared and own; `take` has yet to follow."""
        outer, average = tensors_below(tensors, "outer/"), tensors_below(tensors, "average/")

        def restored(name: str, place: Tensor | None) -> Tensor | None:
            return copied(outer[name], self.device, place) if name in outer else None

        self._met_at = restored("met_at", self._met_at)
        self._outer_momentum = restored("outer_momentum", self._outer_momentum)
        self._unsaid = restored("unsaid", self._unsaid)
        if not self._gives_changes:  # or else the weights follow from what is taken
            self.model.load_state_dict(tensors_below(tensors, "model/"))
        self.optimizer.load_tensors(self.model, tensors_below(tensors, "optimizer/"))
        self.average = {name: copied(tensor, self.device, self.average.get(name)) for name, tensor in average.items()}
        self.step, self._logged_at = step, (0.0, 0)
        self.awaits_mean = self.meets
        every = self.config.distributed.sync_every_steps or 1
        epoch_start = self.plan.epoch_end(self.plan.epoch_of(step - 1) - 1)
        self._met_at_step = max((step - 1) // every * every, epoch_start)

    def _figures(self, **figures: float) -> dict[str, float]:
        """Give the figures of an event of this replica."""
        return {"replica": self.replica, "step": self.step, **figures}

    def _compute_gradient(self, windows: Int64Array) -> float:
        if self.config.model.dropout:
            torch.manual_seed(_torch_seed(self.config.training.seed, _DROPOUT, self.step, self.replica))
        self.optimizer.zero_grad()
        tally = self._accumulate_gradients(torch.from_numpy(windows).to(self.device))
        if self._gives_gradients:  # or else the norm is looked at as well, before the update
            self._check_finite(self.step, loss=tally.loss)
        self.totals = self.totals.with_step(
            loss=tally.loss,
            correct=tally.correct,
            nearest=tally.nearest,
            targets=tally.targets,
            tokens=self.plan.batch_size * self.config.data.window_size,
        )
        return tally.loss

    def _update(self, step: int, **figures: float) -> None:
        """Change the weights by the gradient of a step."""
        rate = learning_rate(step, self.plan.total_steps, self.config.training)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        clip = self.config.training.gradient_clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip if clip is not None else math.inf).item()
        self._check_finite(step, **figures, gradient_norm=norm, learning_rate=rate)
        self.optimizer.step()
        if not self._gives_changes:
            self._update_average(step, step + 1)
        self.totals = self.totals.with_update(gradient_norm=norm, learning_rate=rate)

    def _log_step(self) -> None:
        """Keep a line of the step just done for steps.jsonl, if it is its turn.

        Tokens are counted over the time of work since the line before, or, in a replica from a checkpoint, since the
        epoch began.
        """
        epoch = self.plan.epoch_of(self.step - 1)
        is_due = self.step % self._log_every == 0 or self.step == self.plan.epoch_end(epoch)
        if not is_due or self.replica >= NUM_LOGGING_REPLICAS:
            return
        since, tokens_before = self._logged_at
        worked = working_seconds(self._phases())
        self._logged_at = worked, self.totals.tokens
        self.steps.append(
            StepRecord(
                step=self.step,
                epoch=epoch + 1,
                time=time.time(),
                loss=self.totals.last_loss,
                learning_rate=self.totals.learning_rate,
                gradient_norm=self.totals.last_gradient_norm,
                tokens_per_second=(self.totals.tokens - tokens_before) / (worked - since),
            )
        )

    def _phases(self) -> dict[Phase, float]:
        """Give the times of this epoch so far."""
        return add_phases([self.totals.phases, self.clock.read()])

    def _progress(self) -> StepProgress:
        phases = self._phases()
        return StepProgress(step=self.step, loss=self.totals.last_loss, tokens=self.totals.tokens, phases=phases)

    def _apply_changes(self, mean: Tensor) -> None:
        assert self._met_at is not None
        change, memory = mean[: self.codec.num_lossy], mean[self.codec.num_lossy :]
        self._outer_momentum = outer_step(self._met_at, change, self._outer_momentum, self.config.distributed)
        self._load_weights(self._met_at)
        if memory.numel():
            self.optimizer.load_tensors(self.model, unflatten(memory, self._optimizer_layout()))
        self._update_average(self._met_at_step, self.step)
        self._met_at_step = self.step

    def _optimizer_layout(self) -> dict[str, Tensor]:
        """Give the names and shapes of the optimiser's memory, also before it has any."""
        if not self.optimizer.tensors(self.model):
            self.optimizer.init_state()
        return self.optimizer.tensors(self.model)

    def _load_weights(self, vector: Tensor) -> None:
        with torch.no_grad():
            for name, values in unflatten(vector, self._learned).items():
                self._learned[name].copy_(values)

    def _read(self, step: int) -> Int64Array:
        starts = self._train_windows.starts(self.plan.windows(step, self.replica))
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
    def _update_average(self, start: int, stop: int) -> None:
        """Move the averaged weights a little towards the new ones, as far as the steps since then would have."""
        if self.config.training.ema_decay is None:
            return
        decay = math.prod(average_decay(step, self.config.training.ema_decay) for step in range(start, stop))
        for name, tensor in self.model.state_dict().items():
            if name in self.average:
                self.average[name].lerp_(tensor, 1.0 - decay)
            else:
                self.average[name] = tensor.clone()

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
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

    def _check_finite(self, step: int, **figures: float) -> None:
        if not all(math.isfinite(value) for value in figures.values()):
            listing = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
            raise TrainingDivergedError(
                f"training diverged at step {step}: {listing}. Stopped before this update. {_AFTER_DIVERGENCE}"
            )

    def check_weights(self) -> None:
        """Refuse to go on with weights that are no numbers."""
        weights = list(self.model.parameters())
        # A sum is finite only if all numbers are, and forty times quicker than a look at each; it may also overflow.
        if torch.stack([each.detach().sum() for each in weights]).isfinite().all():
            return
        if not all(each.isfinite().all() for each in weights):
            raise TrainingDivergedError(
                f"training diverged: step {self.step - 1} made a weight infinite or not a number, at learning rate "
                f"{self.totals.learning_rate:g}. {_AFTER_DIVERGENCE}"
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


def tensors_below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take one part of the tensors of a checkpoint, its names without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _joined(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


def _torch_seed(seed: int, *parts: int) -> int:
    return derive_seed(seed, *parts) % 2**63
