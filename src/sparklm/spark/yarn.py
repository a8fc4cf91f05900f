"""YARN as a place to start in: what must be set up here, and how far the application is that is being started."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparklm.errors import JobError, UserError

YARN_TAGS = "spark.yarn.tags"
_LOOK_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_ENDED = {"FINISHED", "FAILED", "KILLED"}


@dataclass(frozen=True, kw_only=True)
class Application:
    """An application, as the resource manager reports it."""

    application_id: str
    state: str
    reason: str

    def __str__(self) -> str:
        return f"{self.application_id} {self.state}" + (f": {self.reason}" if self.reason else "")


def check_yarn() -> None:
    """Refuse to start where Spark would not find the resource manager, or would look for it for many minutes."""
    folder = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")
    if not folder:
        raise UserError(
            "master 'yarn' needs HADOOP_CONF_DIR (or YARN_CONF_DIR), the folder of the cluster's yarn-site.xml and "
            "core-site.xml, and neither is set"
        )
    if not Path(folder, "yarn-site.xml").is_file():
        raise UserError(f"HADOOP_CONF_DIR = {folder!r} has no yarn-site.xml; give the folder with the cluster's own")
    settings = hadoop_settings(folder, "yarn-site.xml")
    address = settings.get("yarn.resourcemanager.address")
    if address is None or settings.get("yarn.resourcemanager.ha.enabled") == "true":
        return  # by its host's name or one of several: left to Spark
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise JobError(
            f"YARN's resource manager does not answer at {address} ({getattr(error, 'strerror', None) or error}); "
            f"see that it runs, and that {folder}/yarn-site.xml is this cluster's"
        ) from error


def hadoop_settings(folder: str, name: str) -> Mapping[str, str]:
    """The settings of a file of HADOOP_CONF_DIR."""
    try:
        properties = ElementTree.parse(Path(folder, name)).getroot().iter("property")
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(f"{folder}/{name} cannot be read: {error}") from error
    return {found.findtext("name", ""): found.findtext("value", "").strip() for found in properties}


@contextlib.contextmanager
def following_yarn(tag: str, on_news: Callable[[str], None]) -> Iterator[None]:
    """Tell of the application with a tag while it is being started; one that is not waited for any more is killed."""
    client, over = _open_client(), threading.Event()

    def follow() -> None:
        shown = ""
        while not over.wait(_LOOK_SECONDS):
            with contextlib.suppress(Exception):  # what only informs ends nothing
                found = find_application(client, tag)
                if found is not None and str(found) != shown and not over.is_set():
                    shown = str(found)
                    on_news(shown)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):
            _kill(client, tag)
        raise
    except Exception as error:
        found = None
        with contextlib.suppress(Exception):
            found = find_application(client, tag)
        if found is None or found.state not in _ENDED:
            raise
        raise JobError(f"Spark does not start with master 'yarn': {found}") from error
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(Exception):
            client.stop()


def find_application(client: Any, tag: str) -> Application | None:
    """The newest application with a tag."""
    reports = _reports(client, tag)
    if not reports:
        return None
    report = max(reports, key=lambda each: int(each.getStartTime()))
    text = str(report.getDiagnostics() or "")
    return Application(
        application_id=str(report.getApplicationId().toString()),
        state=str(report.getYarnApplicationState().toString()),
        # Behind the reason stand details that change every second.
        reason=" ".join(text.partition("Details :")[0].partition("] ")[2 if text.startswith("[") else 0].split()),
    )


def _open_client() -> Any:
    """YARN's own client in the JVM, which reads the same settings as Spark does and has its user's rights."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
    client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration())
    client.start()
    return client


def _reports(client: Any, tag: str) -> list[Any]:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    request = jvm.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
    tags = jvm.java.util.HashSet()
    tags.add(tag)
    request.setApplicationTags(tags)
    return list(client.getApplications(request))


def _kill(client: Any, tag: str) -> None:
    for report in _reports(client, tag):
        client.killApplication(report.getApplicationId())
