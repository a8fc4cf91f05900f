"""What the shell offers when a word is completed. Each answer is sought only when it is asked for."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

_CONFIG = "config.json"  # a run has it, and an unpacked model


def complete_preset(incomplete: str) -> list[str]:
    """The presets."""
    from sparklm.config.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> Iterator[tuple[str, str]]:
    """The settings, each with what it is."""
    from sparklm.config import describe_setting
    from sparklm.config.resolve import known_keys

    return ((f"{key}=", describe_setting(key)) for key in known_keys() if key.startswith(incomplete))


def complete_run(incomplete: str) -> list[str]:
    """The runs that a path may lead to, here or in a folder such as runs/; where there are none, the shell's files."""
    start = glob.escape(incomplete)
    places = [place for pattern in (f"{start}*", f"{start}*/*") for place in glob.glob(pattern)]
    return sorted(place for place in places if os.path.exists(os.path.join(place, _CONFIG)))
