"""The settings of a run as a report shows them: flat, explained, and without secrets.

A report is made to be handed on. What is given to Spark may hold keys and passwords, so values whose names sound like
that are not shown.
"""

from __future__ import annotations

import re

from sparklm.config import Config

HIDDEN = "(hidden)"
_SECRET = re.compile(
    r"secret|password|token|access\.?key|credential", re.IGNORECASE
)  # Spark's own rule, and a word more


def flat_settings(config: Config) -> dict[str, object]:
    """List every setting by its full name."""
    return {key: value for key, value, _ in described_settings(config)}


def described_settings(config: Config) -> list[tuple[str, object, str]]:
    """List every setting as (full name, value, what it is)."""
    rows: list[tuple[str, object, str]] = []
    for section_name, section in config:
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            if isinstance(value, dict):
                rows += [(f"{section_name}.{name}.{key}", _safe(key, value[key]), "") for key in value]
            else:
                rows.append((f"{section_name}.{name}", value, field.description or ""))
    return rows


def _safe(key: str, value: object) -> object:
    return HIDDEN if _SECRET.search(key) else value
