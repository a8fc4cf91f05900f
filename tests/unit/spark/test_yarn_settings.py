"""What is looked at before a start on YARN."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparklm.errors import JobError, UserError
from sparklm.spark.yarn import check_yarn


@pytest.fixture(autouse=True)
def no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def site(folder: Path, address: str) -> str:
    name = "yarn.resourcemanager.address"
    text = f"<configuration><property><name>{name}</name><value>{address}</value></property></configuration>"
    (folder / "yarn-site.xml").write_text(text)
    return str(folder)


def test_without_a_folder_of_settings_there_is_no_yarn() -> None:
    with pytest.raises(UserError, match=r"needs HADOOP_CONF_DIR .* and neither is set"):
        check_yarn()


def test_a_folder_without_the_settings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"has no yarn-site.xml"):
        check_yarn()


def test_settings_that_are_no_xml_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"yarn-site.xml cannot be read: no element found"):
        check_yarn()


def test_a_resource_manager_that_is_not_there_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HADOOP_CONF_DIR", site(tmp_path, address))
        with pytest.raises(JobError, match=rf"does not answer at {address} \(Connection refused\)"):
            check_yarn()
        taken.listen()
        check_yarn()
