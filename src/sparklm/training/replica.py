"""One replica: a model that learns, step after step.

Everything that a step depends on is in the checkpoint (weights, optimizer state, EMA) or is a pure function of the step
(its windows, its learning rate, its dropout), so a replica may stop after any round and go on in another process with
the same bits, as long as the number of threads is the same.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing

import numpy as np
import torch
from torch import Tensor, nn

from sparklm.errors import TrainingDivergedError
from sparklm.evaluation import EVALUATION_BATCH_SIZE, tally_windows
from sparklm.inference.generate import generate_text
from sparklm.inference.prompts import prompt_of
from sparklm.inference.sampling import Sampling
from sparklm.logs import TRACE
from sparklm.models.build import build_model
from sparklm.models.model_zip import TrainedModel
from sparklm.models.objectives import Tally, to_device
from sparklm.models.registry import ARCHITECTURES
from sparklm.text.windows import Int64Array, Windows, derive_seed
from sparklm.training.device import choose_device, choose_precision, deterministic_kernels
from sparklm.training.ema import Ema
from sparklm.training.epoch_log import EpochLog
from sparklm.training.evaluations import PartEvaluation, choose_windows, other_windows, share_of
from sparklm.training.figures import LateFigures
from sparklm.training.loss import TrainingLoss
from sparklm.training.optim import build_optimizer
from sparklm.training.phases import StepProgress
from sparklm.training.readahead import read_ahead
from sparklm.training.recorded_step import StepRecorder
from sparklm.training.records import Sample
from sparklm.training.run import MODEL_STATE, OPTIMIZER_STATE, Run, make_plan, read_embeddings, read_first_state
from sparklm.training.sync.rounds import Round
from sparklm.training.sync.strategies import AFTER_DIVERGENCE, make_strategy
from sparklm.training.tensors import prefixed, tensors_below
from sparklm.usable_memory import keep_freed_memory

_logger = logging.getLogger(__name__)
_STEPS_MEASURED, _SECONDS_MEASURED = 8, 3.0  # of steps that are done to see how long they take
_LONGEST_SAMPLE = 24  # tokens: more would take a percent of an epoch of some seconds
_INITIALISATION, _DROPOUT = 1, 2  # what a derived seed is for
StepCallback = Callable[[StepProgress], None]  # called after every step


class Replica:
    """A model, its optimizer, and the plan of what it sees. Its strategy says what it shares with other replicas."""

    def __init__(self, run: Run, number: int = 0) -> None:
        config = run.config
        self.run, self.config, self.number = run, config, number
        self.device = choose_device(config.training.device)
        pays_on_cpu = ARCHITECTURES[config.model.architecture].halving_pays_on_cpu
        precision = choose_precision(config.training.precision, self.device, pays_on_cpu=pays_on_cpu)
        self._loss = TrainingLoss(self.device, precision, config.training.compile)
        self._figures = LateFigures(self.device)
        keep_freed_memory()
        self.dataset = run.open_dataset()
        self.plan = make_plan(config, self.dataset)
        seed = _torch_seed(config.training.seed, _INITIALISATION)
        vocab_size, first = run.vocab_size(self.dataset.manifest.vocab_size), read_first_state(run)
        weights = tensors_below(first, MODEL_STATE)
        model = build_model(config, vocab_size, read_embeddings(run), seed=seed, weights=weights)
        self.model = model.to(self.device)
        self.model.reserve(config.data.window_size)  # where it is now
        self._weights = list(self.model.parameters())
        self.optimizer = build_optimizer(self.model, config.training)
        self.optimizer.load_tensors(self.model, tensors_below(first, OPTIMIZER_STATE))
        self.ema = Ema(config.training.ema_decay)
        self.log = EpochLog(self.plan, config.output.log_every_steps)
        is_recorded = self.device.type == "cuda" and self.optimizer.can_be_recorded
        self._recorder = StepRecorder[tuple[Tally, Tensor, Tensor]]() if is_recorded else None
        self.strategy = make_strategy(self)
        self.step = 0  # steps whose gradient is computed
        self._is_to_compile = self._loss.is_compiled  # at the first step
        self.pending: Round | None = None  # the round just done, whose sync is not finished
        self._train_windows = self.dataset.windows(self.dataset.train, config.data, config.data.window_stride)

    def renew(self, run: Run) -> None:
        """Go on with the settings of another session, which may have made the run longer."""
        if run.config.training != self.config.training:
            self.plan = make_plan(run.config, self.dataset)
            self.log.plan = self.plan
        self.run, self.config = run, run.config

    def train(
        self, round_: Round, on_step: StepCallback | None = None, ends_early: Callable[[], bool] | None = None
    ) -> Round:
        """Do the steps of a round, as far as the strategy lets a replica do them alone; return the round done.

        One replica ends it after any step, if `ends_early` says so. Several must end it together.
        """
        assert round_.start == self.step, f"round starts at step {round_.start}, the replica is at {self.step}"
        if round_.starts_epoch:
            self.log.begin_epoch()
        length = {"epoch": round_.epoch + 1, "steps": round_.stop - round_.start}
        _logger.info("round begins", extra=self.figures(**length))
        begun, begun_cpu = time.perf_counter(), time.process_time()
        self._do_steps(round_, on_step, ends_early if not self.strategy.syncs else None)
        with self.log.clock("fit"):
            self.read_figures()
        if self.step < round_.stop:
            round_, _ = round_.cut_at(self.step)
        seconds, totals = time.perf_counter() - begun, self.log.totals
        totals.seconds += seconds
        totals.cpu_seconds += time.process_time() - begun_cpu
        _logger.info("round ends", extra=self.figures(**length, seconds=seconds, loss=totals.last_loss))
        self.pending = round_ if self.strategy.syncs else None
        self.strategy.end_round()
        return round_

    def _do_steps(
        self, round_: Round, on_step: StepCallback | None, ends_early: Callable[[], bool] | None = None
    ) -> None:
        self.model.train()
        ahead = self.config.distributed.prefetch_batches
        with closing(read_ahead(self.read, round_.start, round_.stop, ahead)) as batches:
            while self.step < round_.stop:
                if self.step in round_.evaluations:
                    self._evaluate_part(on_step)
                with self.log.clock("data"):
                    windows = next(batches)
                with self.log.clock("compile" if self._is_to_compile else "fit"):
                    self.strategy.step(windows)
                self._is_to_compile = False
                if _logger.isEnabledFor(TRACE):
                    _logger.log(TRACE, "step done", extra=self.figures(loss=self.log.totals.last_loss))
                if on_step is not None:
                    on_step(self.log.progress(self.step, self.number))
                if ends_early is not None and ends_early():
                    break

    def read(self, step: int) -> Int64Array:
        """The windows of a step."""
        starts = self._train_windows.starts(self.plan.windows(step, self.number))
        return self.dataset.train.windows(starts, self._train_windows.window_size)

    def measure_step(self) -> float:
        """Seconds that a step takes, by some that are done for this alone: the replica is then good for nothing."""
        self.model.train()
        times: list[float] = []
        while len(times) < 2 or (len(times) < _STEPS_MEASURED and sum(times) < _SECONDS_MEASURED):
            begun = time.perf_counter()
            with self.log.clock("fit"):
                self.take_step(self.read(len(times)))
                self.read_figures()
            times.append(time.perf_counter() - begun)
        return statistics.median(times[1:])  # the first has much to set up

    def measure_evaluation(self, step_seconds: float) -> float:
        """The time of a token of validation text, in that of one that is trained on, if a step takes so long."""
        windows, _ = self._validation_windows()
        of_window = step_seconds / self.plan.batch_size
        numbers = np.arange(min(windows.num_windows, EVALUATION_BATCH_SIZE, math.ceil(_SECONDS_MEASURED / of_window)))
        if len(numbers) == 0:
            return 0.0
        for _ in range(2):  # the first has much to set up
            begun = time.perf_counter()
            tally_windows(self.model, self.dataset.validation, windows, numbers, loss=self._loss)
            seconds = time.perf_counter() - begun
        of_token = seconds / len(numbers) * windows.num_windows / len(self.dataset.validation)
        return of_token / (of_window / self.config.data.window_size)

    def take_step(self, windows: Int64Array) -> None:
        """Change the weights by this replica's own gradient."""
        if self._recorder is None:
            self.backward(windows)
            self.update()
            return
        self._begin_step()
        rate, is_logged = self._schedule(), self.model.shape.predicts_embedding and self._is_logged()

        def compute(windows: Tensor) -> tuple[Tally, Tensor, Tensor]:
            self.optimizer.zero_grad()
            tally, sums = self._accumulate_gradients(windows, is_logged=is_logged)
            norm = self._clip()
            self.optimizer.step()
            return tally, sums, norm

        with self._kernels():
            tally, sums, norm = self._recorder.run(is_logged, compute, to_device(windows, self.device))
        self._count_batch(tally, sums)
        self._count_update(rate, norm)

    def backward(self, windows: Int64Array) -> None:
        """Compute the gradient of the next step."""
        self._begin_step()
        self.optimizer.zero_grad()
        with self._kernels():
            gathered = self._accumulate_gradients(to_device(windows, self.device), is_logged=self._is_logged())
        self._count_batch(*gathered)

    def update(self) -> None:
        """Change the weights by the gradient of the last step."""
        with self._kernels():
            self._count_update(self._schedule(), self._clip())
            self.optimizer.step()

    def read_figures(self) -> None:
        """Have the figures of all that was done in the log, and refuse to go on after a step that diverged."""
        self._figures.wait()

    def _kernels(self) -> AbstractContextManager[None]:
        return deterministic_kernels(self.device, self.config.training.deterministic)

    def _begin_step(self) -> None:
        if self.config.model.dropout:
            torch.manual_seed(_torch_seed(self.config.training.seed, _DROPOUT, self.step, self.number))
        self.step += 1

    def _is_logged(self) -> bool:
        """Whether all figures of the step are wanted: also of the first of an epoch, which may be its only one."""
        return self.log.is_due(self.step) or self.log.totals.judged == 0

    def _schedule(self) -> float:
        return self.optimizer.schedule(self.step - 1, self.plan.total_steps, self.config.training)

    def _accumulate_gradients(self, windows: Tensor, *, is_logged: bool) -> tuple[Tally, Tensor]:
        """Add up the gradients of a step's batches; the sums of the tally are still on the device."""
        training, tally, sums = self.config.training, Tally(), list[Tensor]()
        for part in torch.split(windows, training.batch_size) if len(windows) > training.batch_size else (windows,):
            batch = self._loss.of_step(self.model, part, training.label_smoothing, is_logged=is_logged)
            loss = batch.loss if len(part) == len(windows) else batch.loss * (len(part) / len(windows))
            loss.backward()  # type: ignore[no-untyped-call]
            sums.append(batch.sums)
            tally.count(batch)
        return tally, sum(sums[1:], sums[0])

    def _clip(self) -> Tensor:
        """Shorten the gradient if it is too long; returns the norm that it had."""
        clip, gradients = self.config.training.gradient_clip, [w.grad for w in self._weights if w.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if clip is not None and (norm.is_cuda or norm > clip):  # a GPU would have to be asked, and does it always
            nn.utils.clip_grads_with_norm_(self._weights, clip, norm)
        return norm

    def _count_batch(self, targets: Tally, sums: Tensor) -> None:
        def count(values: Sequence[float]) -> None:
            tokens = self.plan.batch_size * self.config.data.window_size
            self.log.totals.add_batch(targets.with_sums(values), tokens=tokens)

        self._figures.send(sums, count)

    def _count_update(self, rate: float, norm: Tensor) -> None:
        step = self.step

        def count(values: Sequence[float]) -> None:
            self.check_finite(step, loss=self.log.totals.last_loss, gradient_norm=values[0], learning_rate=rate)
            self.log.totals.add_update(gradient_norm=values[0], learning_rate=rate)
            self.log.add_step(step, self.number)

        self._figures.send(norm.reshape(1), count)

    def evaluate(self, on_batch: Callable[[], None] | None = None) -> tuple[PartEvaluation, Tally]:
        """Score this replica's share of the validation text: of the part that every evaluation has, and of the rest."""
        windows, chosen = self._validation_windows()
        part = self._score_part(windows, chosen, on_batch)
        return part, self._score(windows, other_windows(windows.num_windows, chosen), on_batch)

    @property
    def num_validation_windows(self) -> int:
        """Windows that are scored at the end of an epoch."""
        return self._validation_windows()[0].num_windows

    def _evaluate_part(self, on_step: StepCallback | None) -> None:
        """Score the part of the validation text that every evaluation has, and go on training."""

        def on_batch() -> None:
            if on_step is not None:
                on_step(self.log.progress(self.step, self.number))

        with self.log.clock("evaluate"):
            part = self._score_part(*self._validation_windows(), on_batch)
        self.log.evaluations.append(part)
        self.model.train()
        figures = {"targets": part.tally.targets, "loss_sum": part.tally.loss_sum, "correct": part.tally.correct}
        _logger.info("evaluated", extra=self.figures(**figures))

    def _score_part(
        self, windows: Windows, chosen: Int64Array, on_batch: Callable[[], None] | None = None
    ) -> PartEvaluation:
        epoch = self.plan.epoch_of(self.step - 1) + 1
        return PartEvaluation(
            step=self.step,
            epoch=epoch,
            time=time.time(),
            tokens=self.step * self.plan.batch_size * self.config.data.window_size,
            tally=self._score(windows, chosen, on_batch),
            is_probability=not self.model.shape.predicts_embedding,
            sample=self._generate_sample(epoch) if self.number == 0 else None,
        )

    def _validation_windows(self) -> tuple[Windows, Int64Array]:
        """The windows of the validation text, and the numbers of those that every evaluation has."""
        data = self.config.data
        # A network with an output at every position scores every token once in windows that do not overlap.
        stride = data.window_stride if self.model.shape.predicts_last_only else data.window_size
        windows = self.dataset.windows(self.dataset.validation, data, stride)
        return windows, choose_windows(windows.num_windows, self.run.evaluation.windows)

    def _score(self, windows: Windows, numbers: Int64Array, on_batch: Callable[[], None] | None) -> Tally:
        """Score this replica's share of some windows with the weights that would become the model."""
        share = share_of(numbers, self.number, self.config.distributed.replicas)
        with self.ema.swapped_in(self.model):
            return tally_windows(
                self.model, self.dataset.validation, windows, share, loss=self._loss, on_batch=on_batch
            )

    def _generate_sample(self, epoch: int) -> Sample:
        """Continue the run's prompt for a few tokens."""
        generation = self.config.generation
        prompt = prompt_of(generation, self.dataset)
        length = min(generation.max_new_tokens, _LONGEST_SAMPLE)
        self.model.eval()
        with self.ema.swapped_in(self.model):
            trained = TrainedModel(model=self.model, tokenizer=self.dataset.tokenizer)
            text = generate_text(trained, prompt, length, Sampling.of(generation)).text
        return Sample(epoch=epoch, step=self.step, prompt=prompt, text=text)

    def shared_state(self) -> dict[str, Tensor]:
        """What is the same in all replicas and must survive."""
        return self.strategy.shared_state() | prefixed("average/", self.ema.weights)

    @torch.no_grad()
    def restore(self, round_: Round, tensors: dict[str, Tensor]) -> None:
        """Become what a replica was after a round, from its tensors, shared and own; the sync is still to finish."""
        if self._recorder is not None:
            self._recorder.forget()
        self.strategy.restore(tensors)
        self.ema.restore(tensors_below(tensors, "average/"), self.device)
        self.step, self.pending = round_.stop, round_ if self.strategy.syncs else None

    def check_finite(self, step: int, **figures: float) -> None:
        """Stop at an update that makes the weights worthless, before they are saved."""
        if not all(math.isfinite(value) for value in figures.values()):
            listing = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
            raise TrainingDivergedError(
                f"training diverged at step {step - 1}: {listing}. Nothing of this step was saved. {AFTER_DIVERGENCE}"
            )

    def check_weights(self) -> None:
        """Refuse to go on with weights that are not finite."""
        weights = list(self.model.parameters())
        # A sum is finite only if all numbers are, and forty times quicker than a look at each; it may also overflow.
        if torch.stack([each.detach().sum() for each in weights]).isfinite().all():
            return
        if not all(each.isfinite().all() for each in weights):
            raise TrainingDivergedError(
                f"training diverged: step {self.step - 1} made a weight infinite or not a number, at learning rate "
                f"{self.log.totals.learning_rate:g}. {AFTER_DIVERGENCE}"
            )

    def figures(self, **figures: float) -> dict[str, float]:
        """The figures of a logged event of this replica."""
        return {"replica": self.number, "step": self.step, **figures}


def _torch_seed(seed: int, *parts: int) -> int:
    return derive_seed(seed, *parts) % 2**63
