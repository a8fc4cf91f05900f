"""torch's compiler, on a CPU: where it fails, the function is called as it is."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch

from sparklm.training import compiling
from sparklm.training.compiling import Compiled, is_compiled


def wave(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + x.cos()).exp()


@pytest.mark.process
def test_a_compiler_that_is_missing_is_told_once_and_nothing_else_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch._dynamo.reset()
    function, x = Compiled(wave), torch.linspace(0, 1, 8)
    without = torch._inductor.config.patch({"cpp.cxx": (None, "/no/such/compiler")})
    with caplog.at_level(logging.WARNING), without:
        for _ in range(2):
            assert torch.equal(function(x), wave(x))
    (record,) = caplog.records
    assert "the network is not compiled: InvalidCxxCompiler" in record.getMessage()


@pytest.mark.process
def test_a_process_may_train_many_networks_and_one_too_many_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "_MOST_SHAPES", 3)
    monkeypatch.setattr(compiling.torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2), caplog.at_level(logging.WARNING, logger=compiling.__name__):
        for size in range(2, 6):
            function, x = Compiled(wave), torch.linspace(0, 1, size)
            assert torch.equal(function(x), wave(x))
            assert len([r for r in caplog.records if r.name == compiling.__name__]) == (size == 5)


def test_nothing_is_compiled_for_a_cpu_unless_asked_for() -> None:
    assert not is_compiled(None, torch.device("cpu"))
    assert is_compiled(True, torch.device("cpu"))
    assert not is_compiled(False, torch.device("cuda"))
