"""The interpreter of a packed environment: the script that starts it, and its own files where they are packed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "tests"}
_LEFT_OUT |= {"ensurepip", "idlelib", "tkinter", "turtledemo"}
_OF_EVERY_SYSTEM = re.compile(r"(ld-linux|libc|libm|libdl|librt|libpthread|libutil|libstdc\+\+|libgcc_s)[.-]")
_LAUNCHER = """\
#!/bin/sh
# Starts Python with the packages of this environment. Modules that Spark brings come first.
here=$(cd "$(dirname "$0")/.." && pwd)
{find}
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/lib"
exec "$python" "$@"
"""
_OWN = """\
python="$here/python/bin/python{version}"
export LD_LIBRARY_PATH="$here/python/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\""""
_OF_THE_NODE = """\
for python in "$SPARKLM_NODE_PYTHON" python{version} python3; do
  [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({tuple}))' 2>/dev/null && break
  python=
done
if [ -z "$python" ]; then
  echo "sparklm: this environment is for Python {version}, and $(hostname) has none: name it in SPARKLM_NODE_PYTHON," \\
    "or pack one along with 'sparklm pack --with-python'" >&2
  exit 2
fi"""


def launcher(with_python: bool) -> str:
    """The text of bin/python."""
    find = _OWN if with_python else _OF_THE_NODE
    return _LAUNCHER.format(find=find.format(version=VERSION, tuple=VERSION.replace(".", ", ")))


def interpreter_files() -> Iterator[tuple[str, Path]]:
    """This interpreter, its standard library, and the shared libraries that not every Linux has."""
    executable = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    yield f"bin/python{VERSION}", executable
    libraries = _shared_libraries(executable)
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        for path in Path(folder).rglob("*"):
            name = path.relative_to(folder)
            if path.is_file() and not _LEFT_OUT & set(name.parts) and not name.name.startswith("_tkinter"):
                yield f"lib/python{VERSION}/{name.as_posix()}", path
                if path.suffix == ".so":
                    libraries |= _shared_libraries(path)
    for library, path in libraries.items():
        yield f"lib/{library}", path


def _shared_libraries(binary: Path) -> dict[str, Path]:
    """What a program or module is linked with, by the names that it asks for, less what every system has."""
    if shutil.which("ldd") is None:
        return {}
    listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, timeout=60, check=False).stdout
    found = {match[1]: Path(match[2]) for match in re.finditer(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)}
    return {name: path for name, path in found.items() if _OF_EVERY_SYSTEM.match(name) is None}
