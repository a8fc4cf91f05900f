"""The optimizers: one table of what each is, what state it keeps, and how it is made.

To add one, give it an entry. Settings are checked against this table, so nothing here imports torch before an optimizer
is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sparklm.config import TrainingConfig

    # Makes the parts of an optimizer, which share a network's parameters (by name) between them.
    Build = Callable[[Mapping[str, nn.Parameter], TrainingConfig], list[torch.optim.Optimizer]]

_ENDS = ("embed", "lm_head", "output")  # parts of the names of the matrices at a network's two ends


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """An optimizer, and the float32 numbers that it needs for each parameter."""

    description: str
    build: Build
    state_floats: int  # kept from step to step
    working_floats: int = 0  # there for a moment in a step


def _sgd(named: Mapping[str, nn.Parameter], training: TrainingConfig, **options: Any) -> list[torch.optim.Optimizer]:
    from torch.optim import SGD

    return [SGD(_groups(named.values(), training), lr=training.learning_rate, **options)]


def _nesterov(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    return _sgd(named, training, momentum=training.momentum, nesterov=True)


def _adam(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    from torch.optim import Adam

    betas = training.beta1, training.beta2
    return [Adam(_groups(named.values(), training), lr=training.learning_rate, betas=betas, fused=True)]


def _adamw(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    from torch.optim import AdamW

    betas = training.beta1, training.beta2
    return [AdamW(_groups(named.values(), training), lr=training.learning_rate, betas=betas, fused=True)]


def _muon(named: Mapping[str, nn.Parameter], training: TrainingConfig) -> list[torch.optim.Optimizer]:
    from sparklm.training.muon import Muon

    hidden = {name: parameter for name, parameter in named.items() if _is_hidden_matrix(name, parameter)}
    others = {name: parameter for name, parameter in named.items() if name not in hidden}
    rate, decay = training.learning_rate, training.weight_decay
    muon = Muon(hidden.values(), lr=rate, momentum=training.momentum, weight_decay=decay)
    return [muon, *_adamw(others, training)]


OPTIMIZERS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(description="plain gradient steps", build=_sgd, state_floats=0),
    "nesterov": OptimizerKind(description="SGD with Nesterov momentum", build=_nesterov, state_floats=1),
    "adam": OptimizerKind(description="Adam; decay is part of the gradient", build=_adam, state_floats=2),
    "adamw": OptimizerKind(description="Adam with decoupled weight decay", build=_adamw, state_floats=2),
    # Muon takes all matrices of one shape through its iteration together: about half of a network, six times over.
    # AdamW keeps one number more for its part, but needs none to work with.
    "muon": OptimizerKind(
        description="Muon for the matrices inside the network, AdamW for the rest",
        build=_muon,
        state_floats=1,
        working_floats=3,
    ),
}


class Optimizers:
    """One optimizer, or two that share a network between them, used as one."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Update all weights."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad()

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
            group["lr"] = 0.0  # set anew before every step
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


def build_optimizer(model: nn.Module, training: TrainingConfig) -> Optimizers:
    """Make the optimizer that the settings name, for the parameters that learn."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Optimizers(OPTIMIZERS[training.optimizer].build(named, training))


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
