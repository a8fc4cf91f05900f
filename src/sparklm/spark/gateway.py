"""The JVM of a session, started so that no password is in the list of processes.

PySpark hands all settings to the JVM's launcher as arguments, which everybody on the machine can read. Those that sound
secret are left out there; the session gets them afterwards, through PySpark's own, authenticated connection.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from sparklm.redaction import hide_secrets, sounds_secret

_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"


def start_gateway(properties: Mapping[str, str]) -> None:
    """Start a JVM with all settings but the secret ones; nothing to do where there is one, or nothing is secret."""
    from pyspark import SparkConf, SparkContext

    shown, system = shown_properties(properties)
    if SparkContext._gateway is not None or (shown == dict(properties) and not system):
        return
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(shown.items())))
    for name, value in system.items():  # before anything in the JVM asks for them
        SparkContext._jvm.java.lang.System.setProperty(name, value)


def shown_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings that anybody may read, and the secret `-D` options of the driver's JVM.

    >>> shown_properties({"spark.ssl.keyPassword": "a", _DRIVER_OPTIONS: "-Xss4m -Djavax.net.ssl.keyStorePassword=b"})
    ({'spark.driver.extraJavaOptions': '-Xss4m'}, {'javax.net.ssl.keyStorePassword': 'b'})
    """
    shown: dict[str, str] = {}
    system: dict[str, str] = {}
    for key, value in properties.items():
        if key == _DRIVER_OPTIONS and hide_secrets(value) != value:
            options = shlex.split(value)
            secret = [option for option in options if option.startswith("-D") and hide_secrets(option) != option]
            system |= {name: text for name, _, text in (option[2:].partition("=") for option in secret)}
            shown[key] = shlex.join(option for option in options if option not in secret)
        elif not sounds_secret(key) and hide_secrets(value) == value:
            shown[key] = value
    return shown, system
