"""What a process computes with: its device, its precision, its threads."""

from __future__ import annotations

import os

import psutil
import torch

from sparklm.errors import UserError


def choose_device(wanted: str) -> torch.device:
    """The device to use: a GPU if there is one and it is not ruled out."""
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
