"""What sparklm is made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.audit import OF_GPUS, ROOT, new_secrets, required_distributions, strange_licences
from tests.hostile.cases import case


@case("the licence of everything that sparklm and its extras require is read", "all are of the allowed kinds")
def test_every_licence_is_allowed(lost: Callable[[str], None]) -> None:
    assert list(strange_licences()) == []
    lost(f"0 of {len(required_distributions())} licences")


@case("what is installed is compared with constraints.txt", "everything that is required has an exact pin")
def test_everything_that_is_required_is_pinned() -> None:
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    missing = required_distributions().keys() - set(map(canonicalize_name, pins))
    ours = {name for name in missing if OF_GPUS.match(name) is None}
    assert ours <= {"setuptools", "triton"}  # torch itself pins the latter


@pytest.mark.long
@pytest.mark.process
@case(
    "every tracked file is scanned for keys and passwords (detect-secrets)", "none but those of the list of no secrets"
)
def test_no_file_holds_a_secret() -> None:
    tool = Path(ROOT / ".venv-audit/bin/detect-secrets")
    if not tool.exists():
        pytest.skip("`make audit` has not installed its tools here")
    assert list(new_secrets(tool, renew=False)) == []
