"""`sparklm pack`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sparklm.errors import UserError

Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="PACKAGE",
        help="Leave out what the nodes have already, such as torch, and what only that needs; may be given many times.",
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Option(
        "--extra",
        metavar="NAME",
        help="Pack an extra of sparklm as well, such as mlflow; s3 and hdfs are packed where they are installed.",
    ),
]
Torch = Annotated[
    str | None,
    typer.Option(
        "--torch",
        metavar="BUILD",
        help="Another build of torch, from PyTorch's index: cpu (smaller by gigabytes), cu126, …",
        show_default="the installed one",
    ),
]
WithPython = Annotated[
    bool,
    typer.Option("--with-python", help="Pack the Python interpreter, too: then the nodes need none."),
]


def pack(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The archive to write: .tar.gz or .tgz.")],
    without: Without = None,
    extra: Extra = None,
    torch: Torch = None,
    with_python: WithPython = False,
) -> None:
    """Pack what a job needs, for nodes that do not have it.

    \b
    sparklm pack --out env.tar.gz --torch cpu --with-python  nodes need Java only
    sparklm pack --out env.tar.gz --without torch            nodes have torch
    spark-submit --archives env.tar.gz#environment \\
        --conf spark.pyspark.python=./environment/bin/python …

    PySpark is left out: Spark brings its own. The archive fits nodes with this machine's kind of system and processor,
    and, without --with-python, this version of Python (bin/python looks for it; SPARKLM_NODE_PYTHON may name it).
    """
    from pathlib import Path

    from sparklm.storage import Output
    from sparklm.submit.contents import choose_contents
    from sparklm.submit.pack import ENDINGS, is_our_archive, place_archive
    from sparklm.submit.pack import pack as make
    from sparklm.wording import size

    if not out.endswith(ENDINGS):
        raise UserError(f"--out {out}: Spark unpacks an archive by its ending; use {' or '.join(ENDINGS)}")
    Output.at(out, "the archive", is_our_archive).check()
    contents = choose_contents(without=without or (), extras=extra or (), torch_build=torch, with_python=with_python)
    print(f"Packing {len(contents.packages) + 1} packages", file=sys.stderr)
    path = Path(out)
    place_archive(make(contents), path)
    print(f"{out}: {size(path.stat().st_size)}")
