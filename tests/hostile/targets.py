"""Everything that reads a file which somebody else may have made: how it is read, and files to begin from.

A target reads one file out of a folder and uses what it holds. Only our own errors may come out of it.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.numpy

from sparklm.config import CleaningConfig, Config, DataConfig
from sparklm.config.files import read_config_file
from sparklm.config.resolve import resolve
from sparklm.embeddings.files import read_embeddings
from sparklm.inference.generate import generate_text
from sparklm.inference.sampling import Sampling
from sparklm.models.build import build_model
from sparklm.models.model_zip import load_model, pack_model
from sparklm.placement.in_process import InProcess
from sparklm.progress.status import Status, read_status
from sparklm.storage import Folder
from sparklm.text import shards
from sparklm.text.corpus import open_corpus
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import CHECKPOINTS, latest_step
from sparklm.training.metrics import read_metrics
from sparklm.training.records import EvaluationRecord, Sample, StepRecord, read_lines
from sparklm.training.run import read_run
from sparklm.training.sync.finish import resume_replica

TEXT = "The quick brown fox jumps over the lazy dog.\n" * 3
SETTINGS = "training { epochs = 3, learning_rate = 1e-3 }\ndata.corpus = [a.txt, b.txt]\n"
KINDS = {StepRecord: "steps.jsonl", EvaluationRecord: "evaluations.jsonl", Sample: "samples.jsonl"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A loader."""

    file: str  # the name under which it looks for its file
    read: Callable[[Path], object]  # given the folder
    seed: bytes  # a file as it should be
    needs_run: bool = False  # the folder is a copy of a finished run


def targets(run: Path) -> Mapping[str, Target]:
    """All targets, by name. `run` is a finished run."""
    return _files() | _of_run(run)


def _files() -> dict[str, Target]:
    found = {
        f"config.{kind}": Target(file=f"a.{kind}", read=_config(f"a.{kind}"), seed=text.encode())
        for kind, text in {
            "conf": SETTINGS + "model.width = ${?WIDTH}\nx = ${data.corpus}",
            "yaml": "training: {epochs: 3}\nbase: &base {width: 64}\nmodel:\n  <<: *base\n  num_layers: 2\n",
            "toml": "[training]\nepochs = 3\ndata.corpus = ['a.txt']\n",
            "json": json.dumps({"training": {"epochs": 3}, "data.corpus": ["a.txt"]}),
        }.items()
    }
    found |= {
        f"corpus.{kind}": Target(file=f"a.{kind}", read=_corpus(f"a.{kind}"), seed=data)
        for kind, data in {
            "txt": TEXT.encode(),
            "jsonl": b'{"text": "It was a day"}\n{"text": "in April", "n": 1}\n',
            "csv": b'id,text\n1,"a, ""b"""\n2,c\n',
            "tsv": b"id\ttext\n1\ta\n",
            "txt.gz": gzip.compress(TEXT.encode(), mtime=0),
            "parquet": _parquet(text=["a b", "c d"]),
        }.items()
    }
    found |= {
        f"embeddings, {kind}": Target(file="a.vec", read=_embeddings, seed=data)
        for kind, data in {
            "lines": b"token,id,v\nthe,1,0.5 0.25\nfox,2,1 2\n",
            "brackets": b"a,[1.0, 2.0]\nb,[3.0, 4.0]\n",
            "word2vec": b"2 2\na " + np.ones(2, "<f4").tobytes() + b"b " + np.ones(2, "<f4").tobytes(),
            "safetensors": safetensors.numpy.save({"embeddings": np.ones((257, 2), np.float32)}),
            "parquet": _parquet(id=[0, 1], vector=[[1.0, 2.0], [3.0, 4.0]]),
        }.items()
    }
    byte = make_tokenizer("byte", [], 0)
    model = build_model(
        Config.model_validate({"model": {"num_layers": 1, "width": 8}, "data": {"window_size": 8}}), 257
    )
    return found | {
        "model.zip": Target(file="a.zip", read=_model, seed=pack_model(model.shape, model.state_dict(), byte)),
        "tokenizer.json": Target(file="a.json", read=_tokenizer("a.json"), seed=byte.to_json().encode()),
        "tiktoken": Target(file="a.tiktoken", read=_tokenizer("a.tiktoken"), seed=b"YQ== 0\nYg== 1\nYWI= 2\n"),
        "settings": Target(file="a.txt", read=_settings, seed=b"training.epochs=3\nmodel.width=64\ndata.corpus=[a, b]"),
    }


def _of_run(run: Path) -> dict[str, Target]:
    step = max((run / CHECKPOINTS).iterdir())
    weights, log = (next(step.glob(pattern)) for pattern in ("shared-*", "log-*"))
    shard = next((run / "dataset/shards").iterdir())
    readers: dict[Path, Callable[[Path], object]] = {
        run / "dataset/manifest.json": _dataset,
        run / "dataset/tokenizer.json": _dataset,
        shard: _dataset,
        run / "config.json": lambda folder: read_run(Folder(str(folder))),
        run / "metrics.csv": lambda folder: read_metrics(Folder(str(folder))),
        step / "commit.json": _checkpoint,
        weights: _checkpoint,
        log: _checkpoint,
    }
    for kind, name in KINDS.items():
        readers[run / name] = lambda folder, kind=kind, name=name: read_lines(Folder(str(folder)), name, kind)
    found = {
        f"run, {path.name.partition('-')[0]}": Target(
            file=str(path.relative_to(run)), read=read, seed=path.read_bytes(), needs_run=True
        )
        for path, read in readers.items()
    }
    status = Status(host="a", process_id=1, updated=1.0).model_dump_json().encode()
    return found | {
        "run, status.json": Target(
            file="status.json", read=lambda folder: read_status(Folder(str(folder))), seed=status, needs_run=True
        )
    }


def place(target: Target, data: bytes, folder: Path, run: Path) -> None:
    """Make the folder that a target reads, with this in the place of its file."""
    if target.needs_run and not (folder / "config.json").exists():
        shutil.copytree(run, folder, dirs_exist_ok=True)
    (folder / target.file).write_bytes(data)


def _parquet(**columns: list[object]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _config(name: str) -> Callable[[Path], object]:
    return lambda folder: read_config_file(str(folder / name))


def _corpus(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        corpus = open_corpus(DataConfig(corpus=str(folder / name)), CleaningConfig(), InProcess())
        return [bytes(chunk.data) for chunk in corpus.documents()]

    return read


def _embeddings(folder: Path) -> object:
    return read_embeddings(str(folder / "a.vec"), make_tokenizer("byte", [], 0)).vectors.tobytes()


def _model(folder: Path) -> object:
    trained = load_model(str(folder / "a.zip"))
    return generate_text(trained, "The fox", 3, Sampling(temperature=0.0)).text


def _tokenizer(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        tokenizer = make_tokenizer(str(folder / name), [], 0)
        return tokenizer.decode(tokenizer.encode(TEXT).tolist())

    return read


def _settings(folder: Path) -> object:
    lines = (folder / "a.txt").read_bytes().decode(errors="replace").splitlines()
    return resolve(assignments=lines).config


def _dataset(folder: Path) -> object:
    """The tokens of the run's dataset, as a process gets them that has not seen it before."""
    shards._parse_dataset.cache_clear()
    shards._checked.clear()
    dataset = read_run(Folder(str(folder))).open_dataset()
    return [stream.read(0, len(stream)).tobytes() for stream in (dataset.train, dataset.validation)]


def _checkpoint(folder: Path) -> object:
    """The weights that the run goes on from."""
    forget_replicas()
    run = read_run(Folder(str(folder)))
    replica = resume_replica(run, latest_step(run.folder), 0)
    return replica.step, {name: tensor.tolist() for name, tensor in replica.model.state_dict().items()}
