"""torch's compiler: where it pays, and what happens where it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

_logger = logging.getLogger(__name__)
_MOST_SHAPES = 128  # of all networks that a process trains, one after the other
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def is_compiled(wanted: bool | None, device: torch.device) -> bool:
    """Whether to compile for a device: as set, or where torch has Triton for it."""
    if wanted is not None:
        return wanted
    from torch.utils._triton import has_triton

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0) and has_triton()


class Compiled(Generic[Parameters, Result]):
    """A function, compiled for each shape of its tensors; as it is, should the compiler fail."""

    def __init__(self, function: Callable[Parameters, Result]) -> None:
        self._function = function
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_SHAPES)
        self._compiled: Callable[Parameters, Result] | None = torch.compile(function, fullgraph=True, dynamic=False)

    def __call__(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        """Call it."""
        if self._compiled is not None:
            try:
                return self._compiled(*arguments, **named)
            except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
                _logger.warning(
                    "torch's compiler fails, so the network is not compiled: %s", str(error).partition("\n")[0]
                )
                self._compiled = None
        return self._function(*arguments, **named)
