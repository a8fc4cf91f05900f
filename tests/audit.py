"""What `make audit` looks at: licences of what sparklm requires, secrets in tracked files, known vulnerabilities.

The tools are in an environment of their own (.venv-audit), so that nobody else installs them. Findings of the scan for
secrets that are none are listed in tests/not-secret.json, by file, kind and hash; `--renew` writes the list anew, to be
read before it is committed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NOT_SECRET = ROOT / "tests/not-secret.json"
NOT_FOR_USERS = {"lint", "test"}
# Licences that let everybody use, change and pass on, alone or beside other ones.
ALLOWED = re.compile(
    r"apache|bsd|\bmit\b|mit-0|mit-cmu|\bisc\b|mpl|mozilla public|psf|python software foundation|cnri-python|zlib|"
    r"cc0|bsl-1\.0|unlicense",
    re.IGNORECASE,
)
# Those without a licence in their metadata, and those of others: looked up by hand.
KNOWN = {
    "hdfs-native": "Apache-2.0, says its repository",
    "cuda-toolkit": "NVIDIA's, comes with torch's builds for GPUs only",
}
OF_GPUS = re.compile(r"nvidia-|cuda-")  # NVIDIA's own, brought by torch where its build has CUDA; TORCH=cpu has none


def required_distributions() -> dict[str, metadata.Distribution]:
    """Every installed distribution that sparklm requires, or one of its extras for users does."""
    own = metadata.distribution("sparklm")
    extras = set(own.metadata.get_all("Provides-Extra") or ()) - NOT_FOR_USERS
    found: dict[str, metadata.Distribution] = {}
    left = [("sparklm", frozenset(extras))]
    done = set()
    while left:
        name, wanted = left.pop()
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system, or an extra that is not installed
        for text in found[name].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                left.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    del found["sparklm"]
    return found


def licence_of(distribution: metadata.Distribution) -> str:
    """What a distribution says of its licence: as an expression, by classifiers, or in a line of its own words."""
    said = distribution.metadata
    classifiers = [line for line in said.get_all("Classifier") or () if line.startswith("License ::")]
    by_classifiers = "; ".join(line.rpartition(" :: ")[2] for line in classifiers)
    return said.get("License-Expression") or by_classifiers or (said.get("License") or "").partition("\n")[0]


def strange_licences() -> Iterator[str]:
    """The distributions whose licence is none that is allowed."""
    for name, distribution in sorted(required_distributions().items()):
        licence = licence_of(distribution)
        if ALLOWED.search(licence) is None and name not in KNOWN and OF_GPUS.match(name) is None:
            yield f"{name} {distribution.version}: {licence or 'no licence is told'}"


def secrets_in_tracked_files(tool: Path) -> dict[str, list[list[str]]]:
    """What looks like a secret: kinds and hashes by file."""
    command = [tool, "scan", "--no-verify"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    results = json.loads(output)["results"]
    return {
        file: sorted({(entry["type"], entry["hashed_secret"]) for entry in entries})
        for file, entries in sorted(results.items())
        if file != NOT_SECRET.relative_to(ROOT).as_posix()
    }


def new_secrets(tool: Path, *, renew: bool) -> Iterator[str]:
    """What looks like a secret and is not known to be none."""
    found = secrets_in_tracked_files(tool)
    if renew:
        NOT_SECRET.write_text(json.dumps(found, indent=1) + "\n")
    known = json.loads(NOT_SECRET.read_text())
    for file, entries in found.items():
        for kind, digest in entries:
            if [kind, digest] not in known.get(file, []):
                yield f"{file}: {kind}"


def main() -> None:
    """Print what was found, and exit with 1 if that is anything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=Path, default=ROOT / ".venv-audit/bin")
    parser.add_argument("--renew", action="store_true", help="list what the scan finds now as no secrets")
    options = parser.parse_args()
    licences = [f"licence: {line}" for line in strange_licences()]
    print(f"licences: {len(required_distributions())} distributions, {len(licences)} not allowed")
    secrets = [f"secret: {line}" for line in new_secrets(options.tools / "detect-secrets", renew=options.renew)]
    print(f"secrets: {len(secrets)} new in tracked files")
    print("\n".join(licences + secrets))
    command = [options.tools / "pip-audit", "--strict", "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    audit = subprocess.run([*command, "-r", "constraints.txt"], cwd=ROOT, check=False)
    sys.exit(1 if licences or secrets or audit.returncode else 0)


if __name__ == "__main__":
    main()
