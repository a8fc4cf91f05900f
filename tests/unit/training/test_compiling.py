"""torch's compiler, on a CPU: where it fails, the function is called as it is."""

from __future__ import annotations

import logging

import pytest
import torch

from sparklm.training.compiling import Compiled, is_compiled


def wave(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + x.cos()).exp()


@pytest.mark.process
def test_a_compiler_that_is_missing_is_told_once_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, "/no/such/compiler"))
    torch._dynamo.reset()
    function, x = Compiled(wave), torch.linspace(0, 1, 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(function(x), wave(x))
    (record,) = caplog.records
    assert "the network is not compiled: InvalidCxxCompiler" in record.getMessage()


def test_nothing_is_compiled_for_a_cpu_unless_asked_for() -> None:
    assert not is_compiled(None, torch.device("cpu"))
    assert is_compiled(True, torch.device("cpu"))
    assert not is_compiled(False, torch.device("cuda"))
