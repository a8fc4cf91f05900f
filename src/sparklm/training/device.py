"""What a process computes with: its device, its precision, its threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

import psutil
import torch

from sparklm.config.tree import MOST_THREADS
from sparklm.errors import UserError

if TYPE_CHECKING:
    from sparklm.config import Config
    from sparklm.placement.protocol import Placement


def choose_device(wanted: str) -> torch.device:
    """The device to use: a GPU if there is one and it is not ruled out."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise UserError("training.device = 'cuda', but torch finds no GPU here; use 'cpu' or 'auto'")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def choose_precision(wanted: str, device: torch.device, *, pays_on_cpu: bool = True) -> Literal["fp32", "bf16"]:
    """The precision of matrix products: bf16 on a GPU or a processor that has it, unless set otherwise.

    On processors that would only emulate bf16, many times slower than fp32, it is refused.
    """
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if wanted == "bf16" and not has_bf16:
            raise UserError(
                "training.precision = 'bf16', but this GPU has no bfloat16 arithmetic; use 'auto' or 'fp32'"
            )
        return "bf16" if has_bf16 and wanted != "fp32" else "fp32"
    if wanted == "bf16" and not has_fast_bfloat16():
        raise UserError(
            "training.precision = 'bf16', but this processor has no bfloat16 arithmetic (AVX512_BF16 or AMX) and would "
            "be tens to hundreds of times slower than with 'fp32'; use 'fp32', or a GPU"
        )
    is_halved = wanted == "bf16" or (wanted == "auto" and pays_on_cpu and has_fast_bfloat16())
    return "bf16" if is_halved else "fp32"


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def deterministic_kernels(device: torch.device, wanted: bool) -> AbstractContextManager[None]:
    """Have a GPU add numbers up in the same order every time. A CPU always does."""
    return _deterministic_gpu() if device.type == "cuda" and wanted else nullcontext()


@contextmanager
def _deterministic_gpu() -> Iterator[None]:
    import torch._inductor.config

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as cuBLAS wants it, before it is first used
    # Nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch._inductor.config.deterministic = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def replica_threads(config: Config, placement: Placement) -> int:
    """The CPU threads of a replica: decided once, as results depend on it and a run keeps it."""
    if config.training.threads is not None:
        return config.training.threads
    from_environment = os.environ.get("OMP_NUM_THREADS", "")
    if not from_environment.isdecimal() or from_environment == "0":
        return placement.default_threads(config.distributed.replicas)
    if len(from_environment) > len(str(MOST_THREADS)) or int(from_environment) > MOST_THREADS:
        raise UserError(f"OMP_NUM_THREADS={from_environment} is more than {MOST_THREADS} threads; set fewer, or none")
    return int(from_environment)


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(psutil.Process(os.getpid()).memory_info().rss)
