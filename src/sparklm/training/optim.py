"""The optimizers: one table of what each is, what state it keeps, and how it is made.

To add one, give it an entry. Settings are checked against this table, so nothing here imports torch before an optimizer
is made.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sparklm.training.schedule import muon_momentum, rate_factor

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sparklm.config import TrainingConfig
    from sparklm.training.muon import Dial

    # Makes the parts of an optimizer, which share a network's parameters (by name) between them.
    Build = Callable[[Mapping[str, nn.Parameter], TrainingConfig], list[torch.optim.Optimizer]]

# Muon: highest rates of other parameters, as multiples of that of matrices. Those of embedding and output hold for a
# width of 768, and are larger in narrower networks. That of the embedding holds for so many token ids or more: the
# fewer there are, the more often each is seen, and the less must be learned at each time.
_VECTOR_RATE, _WIDTH_OF_RATES, _TOKENS_OF_RATE = 0.25, 768, 16_384
_OF_SGD = {"learning_rate": 0.1, "weight_decay": 0.0, "momentum": 0.9}
_OF_ADAM = {"learning_rate": 1e-3, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95}
_TOLD = "__dynamo_disable"  # where torch keeps a function as its compiler is to leave it
_OUTPUTS = ("lm_head", "output")  # parts of the names of output layers,
_ENDS = ("embed", *_OUTPUTS)  # and of the matrices at a network's two ends


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """An optimizer, and the float32 numbers that it needs for each parameter."""

    description: str
    build: Build
    state_floats: int  # kept from step to step
    working_floats: int = 0  # there for a moment in a step
    can_be_recorded: bool = False  # a step on a GPU
    defaults: Mapping[str, float] = field(default_factory=dict)  # of settings, where they are not those of muon


def _sgd(named: Mapping[str, nn.Parameter], training: TrainingConfig, **options: Any) -> list[torch.optim.Optimizer]:
    from torch.optim import SGD

    return [SGD(_groups(named.values(), training), lr=training.learning_rate, fused=True, **options)]


def _nesterov(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    return _sgd(named, training, momentum=training.momentum, nesterov=True)


def _adam(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    from torch.optim import Adam

    return [Adam(_groups(named.values(), training), **_adam_options(named, training))]


def _adamw(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    from torch.optim import AdamW

    return [AdamW(_groups(named.values(), training), **_adam_options(named, training))]


def _muon(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    from torch.optim import AdamW

    from sparklm.training.compiling import is_compiled
    from sparklm.training.device import choose_precision
    from sparklm.training.muon import Muon

    device = _device_of(named)
    hidden = [parameter for name, parameter in named.items() if _is_hidden_matrix(name, parameter)]
    muon = Muon(
        hidden,
        lr=_dial(training.learning_rate, device),
        momentum=_dial(muon_momentum(0, 1, training), device),
        weight_decay=_dial(training.weight_decay, device),
        halves=choose_precision(training.precision, device) == "bf16",
        compiles=device.type == "cuda" and is_compiled(training.compile, device),
    )
    by_rate: dict[float, list[nn.Parameter]] = defaultdict(list)
    is_tied = not any(_is_output(name) for name in named)
    for name, parameter in named.items():
        if not _is_hidden_matrix(name, parameter):
            by_rate[_rate_outside(parameter, training, is_output=is_tied or _is_output(name))].append(parameter)
    groups = [
        {"params": parameters, "lr": _dial(rate, device), "weight_decay": 0.0} for rate, parameters in by_rate.items()
    ]
    return [muon, AdamW(groups, eps=1e-10, **_adam_options(named, training))]


def _rate_outside(parameter: nn.Parameter, training: TrainingConfig, *, is_output: bool) -> float:
    """The highest rate of what is no matrix inside the network, from that of those."""
    if parameter.dim() < 2:
        return _VECTOR_RATE * training.learning_rate
    times = training.output_rate
    if not is_output:
        times = training.embedding_rate * min(1.0, parameter.shape[0] / _TOKENS_OF_RATE) ** (1 / 3)
    return times * training.learning_rate * math.sqrt(_WIDTH_OF_RATES / parameter.shape[1])


def _is_output(name: str) -> bool:
    return any(part in name for part in _OUTPUTS)


def _adam_options(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> dict[str, Any]:
    device = _device_of(named)
    return {
        "lr": _dial(training.learning_rate, device),
        "betas": (training.beta1, training.beta2),
        "fused": True,
        "capturable": device.type == "cuda",
    }


def _device_of(named: Mapping[str, nn.Parameter]) -> torch.device:
    return next(iter(named.values())).device


def _dial(value: float, device: torch.device) -> Dial:
    """A rate or the like; on a GPU a tensor, which a recorded step reads anew whenever it is repeated."""
    import torch

    return torch.tensor(value, device=device) if device.type == "cuda" else value


OPTIMIZERS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(description="plain gradient steps", build=_sgd, state_floats=0, defaults=_OF_SGD),
    "nesterov": OptimizerKind(
        description="SGD with Nesterov momentum", build=_nesterov, state_floats=1, defaults=_OF_SGD
    ),
    "adam": OptimizerKind(
        description="Adam; decay is part of the gradient",
        build=_adam,
        state_floats=2,
        can_be_recorded=True,
        defaults=_OF_ADAM,
    ),
    "adamw": OptimizerKind(
        description="Adam with decoupled weight decay",
        build=_adamw,
        state_floats=2,
        can_be_recorded=True,
        defaults={**_OF_ADAM, "weight_decay": 0.1},
    ),
    # Muon takes all matrices of one shape through its iteration together: about half of a network, six times over.
    # AdamW keeps one number more for its part, but needs none to work with.
    "muon": OptimizerKind(
        description="Muon for the matrices inside the network, AdamW for the rest",
        build=_muon,
        state_floats=1,
        working_floats=3,
        can_be_recorded=True,
    ),
}


class Optimizers:
    """One optimizer, or two that share a network between them, used as one."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer], can_be_recorded: bool = False) -> None:
        self.parts, self.can_be_recorded = parts, can_be_recorded
        # What torch has around a step loads its compiler, in a second, and takes 40 µs of every step.
        self._steps = [partial(inspect.unwrap(type(part).step), part) for part in parts]
        self.param_groups: list[dict[str, Any]] = [group for part in parts for group in part.param_groups]
        self._highest_rates = [float(group["lr"]) for group in self.param_groups]

    def step(self) -> None:
        """Update all weights."""
        import torch

        with torch.no_grad():
            for step in self._steps:
                step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def schedule(self, step: int, total_steps: int, training: TrainingConfig) -> float:
        """Set rates, momentum and decay to those of a step; returns the rate of the matrices."""
        factor = rate_factor(step, total_steps, training)
        for group, highest in zip(self.param_groups, self._highest_rates, strict=True):
            _set_dial(group, "lr", factor * highest)
        if training.optimizer == "muon":
            for group in self.parts[0].param_groups:
                _set_dial(group, "momentum", muon_momentum(step, total_steps, training))
                _set_dial(group, "weight_decay", factor * training.weight_decay)
        return factor * training.learning_rate

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The tensors of the state, each named after the parameter it belongs to."""
        from torch import Tensor

        return {
            f"{name}/{kind}": value
            for name, parameter in model.named_parameters()
            for part in self.parts
            for kind, value in sorted(part.state.get(parameter, {}).items())
            if isinstance(value, Tensor)
        }

    def init_state(self) -> None:
        """Have a state, though nothing has been learned: a step of rate zero along gradients of zero."""
        import torch

        for group in self.param_groups:
            _set_dial(group, "lr", 0.0)  # set anew before every step
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.step()
        self.zero_grad()

    def load_tensors(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` returned, and drop all other state."""
        from sparklm.training.tensors import copied

        parameters = dict(model.named_parameters())
        owners = {
            parameter: part for part in self.parts for group in part.param_groups for parameter in group["params"]
        }
        before = {parameter: part.state.pop(parameter, {}) for parameter, part in owners.items()}
        for key, value in tensors.items():
            name, _, kind = key.rpartition("/")
            parameter = parameters[name]
            place = before[parameter].get(kind)
            owners[parameter].state[parameter][kind] = copied(value, parameter.device, place)


def _set_dial(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group[name], float):
        group[name] = value
    else:
        group[name].fill_(value)


def build_optimizer(model: nn.Module, training: TrainingConfig) -> Optimizers:
    """Make the optimizer that the settings name, for the parameters that learn."""
    _keep_compiler_away()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    kind = OPTIMIZERS[training.optimizer]
    return Optimizers(kind.build(named, training), kind.can_be_recorded)


def _keep_compiler_away() -> None:
    """Have optimizers made without torch's compiler, which is loaded in a second and told to leave this alone."""
    from torch.optim import Optimizer

    add = inspect.unwrap(Optimizer.add_param_group)
    if not hasattr(add, _TOLD):
        setattr(add, _TOLD, add)


def _groups(parameters: Iterable[nn.Parameter], training: TrainingConfig) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay, and vectors, which do not."""
    all_parameters = list(parameters)
    return [
        {"params": [p for p in all_parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in all_parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix inside the network, and not at one of its two ends."""
    return parameter.dim() == 2 and not any(part in name for part in _ENDS)
