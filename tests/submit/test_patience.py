"""A job goes on while nobody can be asked about it."""

from __future__ import annotations

import pytest

from sparklm.errors import JobError
from sparklm.submit.patience import OUTAGE_SECONDS, Patience


def test_silence_is_borne_for_minutes_and_then_told() -> None:
    now = 0.0

    def refuse() -> str:
        raise JobError("AWS is out of reach")

    patience = Patience(lambda: now)
    assert patience.ask(lambda: "fine") == "fine"
    assert patience.ask(refuse) is None
    now = OUTAGE_SECONDS - 1
    assert patience.ask(refuse) is None
    assert patience.ask(lambda: "fine") == "fine"
    now = 2 * OUTAGE_SECONDS
    assert patience.ask(refuse) is None
    now = 3 * OUTAGE_SECONDS + 1
    with pytest.raises(JobError, match="out of reach"):
        patience.ask(refuse)
