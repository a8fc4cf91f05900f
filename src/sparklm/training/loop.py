"""One replica that learns: the step, the round, the evaluation.

Everything a step depends on is in the checkpoint (weights, optimiser state) or is a pure function of the step (its
windows, its learning rate, its dropout), so a replica may stop after any round and go on in another process with the
same bits, as long as the number of threads is the same.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from sparklm.config import Config
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.models import build_model
from sparklm.models.objectives import next_token_loss
from sparklm.text.shards import Dataset, TokenStream
from sparklm.text.windows import Int64Array, WindowPlan, Windows, derive_seed
from sparklm.training.metrics import EpochTotals, Evaluation
from sparklm.training.optim import build_optimizer, learning_rate, load_optimizer_tensors, optimizer_tensors
from sparklm.training.readahead import read_ahead
from sparklm.training.strategies import Round

_INITIALISATION, _DROPOUT = 1, 2  # what a derived seed is for
_AFTER_DIVERGENCE = "What was saved before is good. Begin a new run (another --run) with a lower training.learning_rate"
StepCallback = Callable[[int, float], None]  # called with the step just done and its loss


class Trainer:
    """A model, its optimiser, and the plan of what it sees."""

    def __init__(self, config: Config, dataset: Dataset, plan: WindowPlan) -> None:
        self.config, self.dataset, self.plan = config, dataset, plan
        self.device = choose_device(config.training.device)
        self.step = 0
        self.totals = EpochTotals()
        self.model = build_model(config, dataset.manifest.vocab_size)
        generator = torch.Generator().manual_seed(_torch_seed(config.training.seed, _INITIALISATION))
        self.model.initialise(generator)  # type: ignore[operator]
        self.model.to(self.device)
        self.optimizer = build_optimizer(self.model, config.training)
        data = config.data
        self._train_windows = dataset.windows(dataset.train, data, data.window_stride)
        self._validation_windows = dataset.windows(dataset.validation, data, data.window_size)

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
        return evaluate(self.model, self.dataset.validation, self._validation_windows, self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Give all that must survive: `model/…` and `optimizer/…`."""
        weights = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        moments = optimizer_tensors(self.model, self.optimizer)
        return weights | {f"optimizer/{name}": tensor for name, tensor in moments.items()}

    def restore(self, *, step: int, tensors: dict[str, Tensor], totals: EpochTotals) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(tensors_below(tensors, "model/"))
        load_optimizer_tensors(self.model, self.optimizer, tensors_below(tensors, "optimizer/"))
        self.step, self.totals = step, totals

    def _train_step(self, windows: Int64Array, replica: int) -> float:
        rate = learning_rate(self.step, self.plan.total_steps, self.config.training)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.config.model.dropout:
            torch.manual_seed(_torch_seed(self.config.training.seed, _DROPOUT, self.step, replica))
        batch = next_token_loss(self.model, torch.from_numpy(windows).to(self.device))
        batch.loss.backward()  # type: ignore[no-untyped-call]
        clip = self.config.training.gradient_clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip if clip is not None else math.inf)
        loss, gradient_norm = batch.loss.item(), norm.item()
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise TrainingDivergedError(
                f"training diverged at step {self.step}: loss {loss:.4g}, gradient norm {gradient_norm:.4g}, "
                f"learning rate {rate:g}. Stopped before this update. {_AFTER_DIVERGENCE}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.totals = self.totals.with_step(
            loss=loss,
            correct=int(batch.num_correct.item()),
            tokens=batch.num_targets,
            gradient_norm=gradient_norm,
            learning_rate=rate,
        )
        self.step += 1
        return loss

    def _read(self, step: int, replica: int) -> Int64Array:
        starts = self._train_windows.starts(self.plan.windows(step, replica))
        return self.dataset.train.windows(starts, self._train_windows.window_size)


@torch.no_grad()
def evaluate(
    model: nn.Module, stream: TokenStream, windows: Windows, device: torch.device, batch_size: int = 32
) -> Evaluation | None:
    """Score every token of a stream that is the target of a window; None when there is no window."""
    num_windows = windows.num_windows
    if num_windows == 0:
        return None
    was_training = model.training
    model.eval()
    loss_sum, correct, tokens = 0.0, 0, 0
    for first in range(0, num_windows, batch_size):
        starts = windows.starts(np.arange(first, min(first + batch_size, num_windows)))
        batch = next_token_loss(model, torch.from_numpy(stream.windows(starts, windows.window_size)).to(device))
        loss_sum += batch.loss.item() * batch.num_targets
        correct += int(batch.num_correct.item())
        tokens += batch.num_targets
    model.train(was_training)
    return Evaluation(loss=loss_sum / tokens, accuracy=correct / tokens, tokens=tokens)


def choose_device(wanted: str) -> torch.device:
    """Pick the device: a GPU if there is one and it is not ruled out."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise UserError("training.device = 'cuda', but torch finds no GPU here; use 'cpu' or 'auto'")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def use_threads(threads: int) -> None:
    """Set how many CPU threads torch uses, whatever the environment of this process says."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(psutil.Process(os.getpid()).memory_info().rss)


def tensors_below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take one part of what `Trainer.tensors` gave, its names without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _torch_seed(seed: int, *parts: int) -> int:
    return derive_seed(seed, *parts) % 2**63
