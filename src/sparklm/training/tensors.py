"""Tensors by name: laid end to end in a vector, cut out of one again, copied, and picked out of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Lay tensors end to end in a new vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut a vector into tensors of given names and shapes; they share its memory.

    >>> parts = unflatten(torch.arange(5.0), {"a": torch.zeros(2, 2), "b": torch.zeros(())})
    >>> parts["a"].tolist(), parts["b"].item()
    ([[0.0, 1.0], [2.0, 3.0]], 4.0)
    """
    sizes = [tensor.numel() for tensor in like.values()]
    parts = torch.split(vector, sizes)
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}


def copied(value: Tensor, device: torch.device, place: Tensor | None) -> Tensor:
    """A copy of a tensor, in memory that is there already if it fits: to allocate takes longer than to copy."""
    if place is not None and place.shape == value.shape:
        return place.copy_(value)
    return value.to(device, copy=True)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as one part of a checkpoint: their names with a prefix."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def tensors_below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """One part of the tensors of a checkpoint, its names without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
