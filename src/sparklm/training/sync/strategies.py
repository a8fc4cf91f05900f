"""What replicas share: the strategies.

After each round, every replica contributes one flat vector and applies the mean of all of them. What the vector is, and
what becomes of the mean, is the strategy:

    single      one replica: nothing to share
    allreduce   contributes the gradient of one step; the mean is the gradient of the step that all then take
    averaging   contributes how its weights have changed (and its optimizer state); the mean is applied as it is
    diloco      contributes how its weights have changed; the mean is the gradient of an outer Nesterov step

A strategy also says what a checkpoint holds. A checkpoint is what replicas are *between* contributing and applying: the
state that all share, the state that is a replica's own, and the mean or what it is the mean of.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparklm.errors import TrainingDivergedError
from sparklm.training.sync.codec import Codec, ErrorFeedback
from sparklm.training.tensors import copied, flatten, prefixed, tensors_below, unflatten

if TYPE_CHECKING:
    from sparklm.text.windows import Int64Array
    from sparklm.training.replica import Replica

_logger = logging.getLogger(__name__)
AFTER_DIVERGENCE = "What was saved before is good. Begin a new run (another --run) with a lower training.learning_rate"


class Strategy(ABC):
    """How one replica stays in step with the others."""

    syncs = True
    shared_state_is_constant = False  # while a round is done: then it can be saved meanwhile

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.weights = {name: weight for name, weight in replica.model.named_parameters() if weight.requires_grad}
        num_weights = sum(weight.numel() for weight in self.weights.values())
        self.feedback = ErrorFeedback(Codec(wire_dtype=replica.config.distributed.compress, num_lossy=num_weights))

    @property
    def codec(self) -> Codec:
        """How contributions become bytes."""
        return self.feedback.codec

    @abstractmethod
    def step(self, windows: Int64Array) -> None:
        """Do one step, as far as this replica can do it alone."""

    def end_round(self) -> None:
        """Refuse to go on with weights that are not finite."""
        self.replica.check_weights()

    @torch.no_grad()
    def contribute(self) -> Tensor:
        """What this replica contributes to the sync, as the others will decode it."""
        begun, replica = time.perf_counter(), self.replica
        vector = self._contribution()
        if self.codec.wire_dtype != "none" and not vector.isfinite().all():  # compression would hide it
            raise TrainingDivergedError(
                f"training diverged at step {replica.step - 1}: the contribution of this replica is not finite. "
                f"{AFTER_DIVERGENCE}"
            )
        decoded = self.feedback.compress(vector)
        num_bytes, seconds = self.codec.encoded_bytes(decoded.numel()), time.perf_counter() - begun
        _logger.debug("replica contributes", extra=replica.figures(bytes=num_bytes, seconds=seconds))
        return decoded

    def _contribution(self) -> Tensor:
        raise NotImplementedError("one replica has nobody to sync with")

    @torch.no_grad()
    def apply(self, mean: Tensor) -> None:
        """Go on from the mean of what all replicas contributed in the round just done."""
        begun, begun_cpu, replica = time.perf_counter(), time.process_time(), self.replica
        assert replica.pending is not None, "a mean is applied once, after a round"
        mean = mean.to(replica.device)
        self._apply(mean, range(replica.pending.start, replica.pending.stop))
        replica.pending = None
        mean_bytes, seconds = mean.numel() * mean.element_size(), time.perf_counter() - begun
        replica.log.totals.seconds += seconds
        replica.log.totals.cpu_seconds += time.process_time() - begun_cpu
        replica.log.totals.exchanged_bytes += self.codec.encoded_bytes(mean.numel()) + mean_bytes
        _logger.debug("replica applies the mean", extra=replica.figures(bytes=mean_bytes, seconds=seconds))

    def _apply(self, mean: Tensor, steps: range) -> None:
        raise NotImplementedError("one replica has nobody to sync with")

    def shared_state(self) -> dict[str, Tensor]:
        """What is the same in all replicas and must survive."""
        return prefixed("model/", self.replica.model.state_dict()) | self._optimizer_state()

    def own_state(self) -> dict[str, Tensor]:
        """What only this replica has and must survive."""
        return _known({"sync/residual": self.feedback.residual})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back the shared and the own state of a checkpoint; `apply` has yet to follow."""
        self._restore_weights(tensors)
        self.replica.optimizer.load_tensors(self.replica.model, tensors_below(tensors, "optimizer/"))
        self.feedback.residual = self._restored(tensors, "sync/residual", self.feedback.residual)

    def _restore_weights(self, tensors: dict[str, Tensor]) -> None:
        self.replica.model.load_state_dict(tensors_below(tensors, "model/"))

    def _restored(self, tensors: dict[str, Tensor], name: str, place: Tensor | None) -> Tensor | None:
        return copied(tensors[name], self.replica.device, place) if name in tensors else None

    def _optimizer_state(self) -> dict[str, Tensor]:
        return prefixed("optimizer/", self.replica.optimizer.tensors(self.replica.model))


class Single(Strategy):
    """One replica, alone."""

    syncs = False

    def step(self, windows: Int64Array) -> None:
        """Update the weights by this replica's own gradient."""
        replica = self.replica
        replica.take_step(windows)
        replica.ema.update(replica.model, range(replica.step - 1, replica.step))


class AllReduce(Strategy):
    """Every step is taken by all replicas together, along the mean of their gradients."""

    def step(self, windows: Int64Array) -> None:
        """Compute the gradient; the update waits for the mean of all."""
        self.replica.backward(windows)
        self.replica.read_figures()
        self.replica.check_finite(self.replica.step, loss=self.replica.log.totals.last_loss)

    def end_round(self) -> None:
        """No weight has changed yet."""

    def _contribution(self) -> Tensor:
        weights = self.weights.values()
        return flatten(weight.grad if weight.grad is not None else torch.zeros_like(weight) for weight in weights)

    def _apply(self, mean: Tensor, steps: range) -> None:
        replica = self.replica
        with replica.log.clock("fit"):
            for name, gradient in unflatten(mean.clone(), self.weights).items():
                self.weights[name].grad = gradient
            replica.update()
            replica.read_figures()  # no round ends after the last update
            replica.ema.update(replica.model, steps)


class OuterOptimizer(Strategy):
    """Replicas train apart for some steps; the mean of their changes then moves the weights they all began with.

    The *anchor* is these weights. Averaging applies the mean as it is; DiLoCo takes it for the gradient of an outer
    optimizer with Nesterov momentum.
    """

    shared_state_is_constant = True

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        settings = replica.config.distributed
        buffers = replica.model.state_dict().keys() - dict(replica.model.named_parameters()).keys()
        assert not buffers, f"only parameters are synced, but the network also saves {sorted(buffers)}"
        self._settings = settings
        self._averages_state = settings.strategy == "averaging" and settings.average_optimizer
        self._anchor = flatten(self.weights.values())
        self._momentum: Tensor | None = None

    def step(self, windows: Int64Array) -> None:
        """Update the weights by this replica's own gradient."""
        self.replica.take_step(windows)

    def _contribution(self) -> Tensor:
        change = self._anchor - flatten(self.weights.values())
        if not self._averages_state:
            return change
        return flatten([change, *self.replica.optimizer.tensors(self.replica.model).values()])

    def _apply(self, mean: Tensor, steps: range) -> None:
        replica, num_weights = self.replica, self._anchor.numel()
        with replica.log.clock("broadcast"):
            self._move_anchor(mean[:num_weights])
            for name, values in unflatten(self._anchor, self.weights).items():
                self.weights[name].copy_(values)
            if self._averages_state:
                self._load_optimizer_state(mean[num_weights:])
            replica.ema.update(replica.model, steps)
            replica.check_weights()

    def _move_anchor(self, mean_change: Tensor) -> None:
        """Move the anchor, in place. A change is the old weights less the new ones: a gradient for the outer step."""
        if self._settings.strategy == "averaging":
            self._anchor.sub_(mean_change)
            return
        beta = self._settings.outer_momentum
        momentum = self._momentum
        self._momentum = mean_change.clone() if momentum is None else momentum.mul_(beta).add_(mean_change)
        step = torch.add(mean_change, self._momentum, alpha=beta)
        self._anchor.sub_(step, alpha=self._settings.outer_learning_rate)

    def _load_optimizer_state(self, vector: Tensor) -> None:
        optimizer, model = self.replica.optimizer, self.replica.model
        if not optimizer.tensors(model):  # of a replica from a checkpoint, which has not done a step yet
            optimizer.init_state()
        optimizer.load_tensors(model, unflatten(vector, optimizer.tensors(model)))

    def shared_state(self) -> dict[str, Tensor]:
        """The anchor and the outer momentum: the weights follow from them and the mean."""
        return _known({"sync/anchor": self._anchor, "sync/momentum": self._momentum})

    def own_state(self) -> dict[str, Tensor]:
        """The residual, and the optimizer state where each replica keeps its own."""
        return super().own_state() | ({} if self._averages_state else self._optimizer_state())

    def _restore_weights(self, tensors: dict[str, Tensor]) -> None:
        """Take back what the weights follow from, once the mean is applied."""
        self._anchor = copied(tensors["sync/anchor"], self.replica.device, self._anchor)
        self._momentum = self._restored(tensors, "sync/momentum", self._momentum)


def make_strategy(replica: Replica) -> Strategy:
    """The strategy that the settings name; with one replica there is nothing to choose."""
    distributed = replica.config.distributed
    if distributed.replicas == 1:
        return Single(replica)
    return AllReduce(replica) if distributed.strategy == "allreduce" else OuterOptimizer(replica)


def _known(tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
