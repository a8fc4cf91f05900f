"""`sparklm embed`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Master,
    check_placement,
    print_note,
    program_name,
    resolve_settings,
)
from sparklm.errors import UserError

if TYPE_CHECKING:
    from sparklm.config import Config
    from sparklm.embeddings.files import Embeddings
    from sparklm.storage import Folder
    from sparklm.text.shards import Dataset

_DEFAULT_SIZE = 100


def embed(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A prepared dataset.")],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where the embeddings go; what is there already is looked at.")
    ] = "embeddings.safetensors",
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="word2vec, random, or a file of embeddings.", show_default="word2vec"),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Size of a vector.", show_default=str(_DEFAULT_SIZE))
    ] = None,
    neighbours: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Print the tokens nearest to this one; may be repeated.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many neighbours to print.")] = 10,
    config: ConfigFile = None,
    assignments: Assignments = None,
    master: Master = None,
) -> None:
    """Make a vector for every token of a dataset, and look at them."""
    from sparklm.embeddings.files import read_embeddings
    from sparklm.embeddings.nearest import find_token
    from sparklm.storage import Folder, split_address
    from sparklm.text.shards import is_dataset, open_dataset

    if not out.endswith(".safetensors"):
        raise UserError(f"--out {out}: embeddings are written as safetensors; let the name end in .safetensors")
    folder, name = split_address(out)
    is_there = folder.exists(name)
    if is_there and (kind or size or assignments or config):
        raise UserError(f"{out} is there already; choose another --out, or leave out the settings to look at it")
    if not is_dataset(dataset):
        make = f"{program_name()} prepare {shlex.quote(dataset)} --out data"
        raise UserError(f"{dataset} is not a dataset; if it is text, make one with: {make}")
    opened = open_dataset(Folder(dataset))
    tokens = [find_token(opened.tokenizer, word) for word in neighbours or []]
    if is_there:
        embeddings = read_embeddings(out, opened.tokenizer)
    else:
        flags = {"data.embeddings": kind, "spark.master": master}
        resolved = resolve_settings(None, config, assignments, flags).config
        embeddings = _make_embeddings(resolved, size or _DEFAULT_SIZE, opened, folder, name)
    for note in embeddings.notes:
        print_note(note)
    _print_neighbours(opened, embeddings, tokens, top)
    if not is_there:
        rows, columns = embeddings.vectors.shape
        print(f"{rows:,} vectors of size {columns}\n  {out}")
        settings = f"--set data.embeddings={shlex.quote(out)} --set model.width={columns}"
        print(f"next: {program_name()} train {shlex.quote(dataset)} {settings}")


def _make_embeddings(config: Config, size: int, dataset: Dataset, folder: Folder, name: str) -> Embeddings:
    """Make the embeddings that the settings ask for, and write them; only Word2Vec is work for Spark."""
    from sparklm.embeddings.make import make_embeddings, write_embeddings
    from sparklm.placement.start import started
    from sparklm.spark.submitted import check_deployment
    from sparklm.storage import owning

    work, kind = folder / f".{name}.work", config.data.embeddings or "word2vec"
    check_deployment(config, folder)
    folder.check_writable()
    if kind != "word2vec":
        config = config.model_copy(update={"spark": config.spark.model_copy(update={"master": "none"})})
    check_placement(config)
    with owning(work, print_note, config.storage.lease_seconds):
        with started(config.spark) as placement:
            embeddings = make_embeddings(kind, size, config, dataset, work, placement.run_tasks, _show_round)
        if folder.exists(name):
            raise UserError(
                f"{folder.address(name)} has appeared meanwhile, and is not overwritten; choose another --out"
            )
        write_embeddings(folder, name, embeddings.vectors)
    work.remove_if_empty()
    return embeddings


def _print_neighbours(dataset: Dataset, embeddings: Embeddings, tokens: Sequence[int], top: int) -> None:
    from sparklm.embeddings.nearest import nearest

    for token, near in zip(tokens, nearest(embeddings.vectors, tokens, top), strict=True):
        print(f"nearest to {json.dumps(dataset.tokenizer.token_text(token), ensure_ascii=False)}:")
        for other, cosine in near:
            print(f"  {cosine:6.3f}  {json.dumps(dataset.tokenizer.token_text(other), ensure_ascii=False)}")


def _show_round(done: int, total: int) -> None:
    end = "\n" if done == total or not sys.stderr.isatty() else "\r"
    print(f"sparklm: word2vec, round {done} of {total}", end=end, file=sys.stderr, flush=True)
