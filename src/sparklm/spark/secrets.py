"""What a JVM may be started with: its arguments are in the list of processes, which everybody can read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from sparklm.redaction import hide_secrets, sounds_secret


def shown_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings without a secret; the others are told to the JVM later, through PySpark's own connection.

    >>> shown_properties({"spark.ssl.keyPassword": "a", "spark.my.place": "ftp://me:b@host", "spark.cores.max": "2"})
    {'spark.cores.max': '2'}
    """
    return {key: text for key, text in properties.items() if not sounds_secret(key) and hide_secrets(text) == text}


def split_java_options(options: str) -> tuple[str, dict[str, str]]:
    """The options that may be shown, and those that set a secret property, which can be set later as well.

    >>> split_java_options("-Xss4m -Djavax.net.ssl.trustStorePassword=hush")
    ('-Xss4m', {'javax.net.ssl.trustStorePassword': 'hush'})
    """
    if hide_secrets(options) == options:
        return options, {}
    parts = shlex.split(options)
    secret = [part for part in parts if part.startswith("-D") and hide_secrets(part) != part]
    properties = {name: value for name, _, value in (part.removeprefix("-D").partition("=") for part in secret)}
    return shlex.join(part for part in parts if part not in secret), properties
