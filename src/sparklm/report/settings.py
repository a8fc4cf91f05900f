"""The settings of a run as a report shows them: flat, explained, and without secrets.

A report is made to be handed on. What is given to Spark may hold keys and passwords, so values whose names sound like
that are not shown, nor are passwords in addresses.
"""

from __future__ import annotations

from sparklm.config import Config
from sparklm.report.redaction import hide_credentials, shown_property


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
                rows += [(f"{section_name}.{name}.{key}", shown_property(key, value[key]), "") for key in value]
            else:
                shown = hide_credentials(value) if isinstance(value, str) else value
                rows.append((f"{section_name}.{name}", shown, field.description or ""))
    return rows
