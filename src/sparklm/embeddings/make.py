"""Token embeddings that are made here: random ones, or Word2Vec's; files.py reads those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sparklm.config import Config
from sparklm.embeddings.files import Embeddings, read_embeddings
from sparklm.embeddings.lines import FloatArray
from sparklm.storage import Folder
from sparklm.text.shards import Dataset

if TYPE_CHECKING:
    from sparklm.placement.protocol import RunTasks


def make_embeddings(
    kind: str,
    size: int,
    config: Config,
    dataset: Dataset,
    work: Folder,
    run_tasks: RunTasks,
    on_round: Callable[[int, int], None] | None = None,
) -> Embeddings:
    """Embeddings of a kind: random vectors of a size, Word2Vec's, or those of a file, which have their own size.

    `work` holds what a stopped Word2Vec needs to go on; `on_round` is called with how many of its rounds are done, and
    of how many.
    """
    vocab_size, seed = dataset.manifest.vocab_size, config.training.seed
    if kind == "random":
        return Embeddings(vectors=random_embeddings(vocab_size, size, seed), notes=[])
    if kind == "word2vec":
        from sparklm.embeddings.skipgram import Word2VecSettings
        from sparklm.embeddings.word2vec import train_word2vec

        settings = Word2VecSettings(**config.word2vec.model_dump(), size=size, seed=seed)
        return Embeddings(
            vectors=train_word2vec(dataset.folder, work, settings, run_tasks, on_round),
            notes=[f"embeddings: Word2Vec of size {size}, trained on {len(dataset.train):,} tokens"],
        )
    return read_embeddings(kind, dataset.tokenizer)


def random_embeddings(vocab_size: int, size: int, seed: int) -> FloatArray:
    """Random vectors of length about one."""
    vectors: FloatArray = np.random.default_rng(seed).standard_normal((vocab_size, size), dtype=np.float32)
    return vectors / np.float32(size**0.5)


def write_embeddings(folder: Folder, name: str, vectors: FloatArray) -> None:
    """Write vectors where a training run or a later look finds them."""
    from safetensors.numpy import save

    folder.write_bytes(name, save({"embeddings": np.ascontiguousarray(vectors)}))
