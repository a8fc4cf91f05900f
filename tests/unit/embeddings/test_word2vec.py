"""Word2Vec: words of one topic come out as neighbours; who does the work, and how often, changes nothing."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from sparklm.embeddings import word2vec
from sparklm.embeddings.skipgram import Sampling, Tables, Word2VecSettings, train_chunk
from sparklm.embeddings.word2vec import Plan, average, make_plan, train_word2vec
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.shards import Dataset, read_manifest
from tests.corpora import make, opened, write_corpus

TOPICS = [
    ["salt", "pepper", "onion", "butter", "flour", "garlic"],
    ["anchor", "sail", "harbour", "rudder", "captain", "deck"],
    ["violin", "piano", "chord", "melody", "rhythm", "flute"],
]
here = InProcess().run_tasks
SETTINGS = Word2VecSettings(size=16, window=2, negatives=2, epochs=3, subsample=0, learning_rate=0.03)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Sixty documents, each on one topic, and one with a word that occurs once."""
    place, random = tmp_path_factory.mktemp("word2vec"), np.random.default_rng(0)
    topics = {str(number): random.choice(TOPICS[number % len(TOPICS)], 200) for number in range(60)}
    write_corpus(place, **{name: " " + " ".join(words) for name, words in topics.items()}, rare=" once")
    make(place, tokenizer="word", vocab_size=300, validation_fraction=0)
    return opened(place)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small corpus large enough for several rounds."""
    monkeypatch.setattr(word2vec, "_CHUNK_TOKENS", 1000)
    monkeypatch.setattr(word2vec, "_ROUND_CHUNKS", 2)
    monkeypatch.setattr(word2vec, "_LONE_ROUND_CHUNKS", 4)


def token_id(dataset: Dataset, word: str) -> int:
    (found,) = dataset.tokenizer.encode(f" {word}").tolist()
    return int(found)


def similarity(dataset: Dataset, vectors: np.ndarray) -> tuple[float, float]:
    """Give the lowest cosine within a topic and the highest across topics."""
    ids = [token_id(dataset, word) for topic in TOPICS for word in topic]
    unit = vectors[ids] / np.linalg.norm(vectors[ids], axis=1, keepdims=True)
    same = np.kron(np.eye(len(TOPICS)), np.ones((6, 6))) == 1
    cosines = unit @ unit.T
    return float(cosines[same].min()), float(cosines[~same].max())


@pytest.mark.parametrize("parts", [1, 2])
def test_words_of_one_topic_are_neighbours(dataset: Dataset, tmp_path: Path, small_chunks: None, parts: int) -> None:
    settings = SETTINGS.model_copy(update={"parts": parts})
    vectors = train_word2vec(dataset.folder, Folder(str(tmp_path)), settings, here)
    assert vectors.shape == (dataset.tokenizer.vocab_size, 16)
    assert vectors.dtype == np.float32
    within, across = similarity(dataset, vectors)
    assert within > across + 0.2, (within, across)


def test_rare_tokens_and_the_end_of_text_get_the_mean(dataset: Dataset, tmp_path: Path) -> None:
    vectors = train_word2vec(dataset.folder, Folder(str(tmp_path)), SETTINGS, here)
    words = [token_id(dataset, word) for topic in TOPICS for word in topic]
    for other in (token_id(dataset, "once"), dataset.tokenizer.end_of_text):
        np.testing.assert_allclose(vectors[other], vectors[words].mean(axis=0), atol=1e-5)


def test_contexts_do_not_cross_the_end_of_text() -> None:
    counts = np.array([0, 100, 100, 100])
    settings = SETTINGS.model_copy(update={"window": 2})
    sampling = Sampling.from_counts(counts, 0, settings, 0.05)
    sampling.noise.fill_(3)
    tables = Tables.initial(4, 16, seed=1)
    tables.output_VD.normal_(generator=torch.Generator().manual_seed(1))
    before = tables.input_VD.clone()
    train_chunk(tables, np.array([1, 0, 2, 0, 1]), sampling, settings, 0.05, seed=1)
    assert torch.equal(tables.input_VD, before), "no token has a context, so nothing can be learned"
    train_chunk(tables, np.array([1, 0, 2, 1, 0]), sampling, settings, 0.05, seed=1)
    assert not torch.equal(tables.input_VD[2], before[2])


def test_one_update_is_the_gradient_of_the_loss() -> None:
    """Compare with autograd: two neighbours, and for each of the two pairs five noise tokens."""
    settings = SETTINGS.model_copy(update={"window": 1, "negatives": 5})
    sampling = Sampling.from_counts(np.array([0, 50, 50, 100]), 0, settings, highest_rate=1e-3)
    sampling.noise.fill_(3)
    tables = Tables.initial(4, 16, seed=1)
    tables.output_VD.normal_(generator=torch.Generator().manual_seed(1))
    inputs, outputs = (table.clone().requires_grad_() for table in (tables.input_VD, tables.output_VD))
    loss = torch.zeros(())
    for centre, context in ((1, 2), (2, 1)):
        loss -= (inputs[centre] @ outputs[context]).sigmoid().log()
        loss -= 5 * (-(inputs[centre] @ outputs[3])).sigmoid().log()
    loss.backward()
    train_chunk(tables, np.array([1, 2]), sampling, settings, 0.05, seed=1)
    torch.testing.assert_close(tables.input_VD, inputs.detach() - 0.05 * inputs.grad)
    torch.testing.assert_close(tables.output_VD, outputs.detach() - 0.05 * outputs.grad)


def reversed_and_repeated(work, orders, title):
    for order in orders:
        work(order)
    return [work(order) for order in reversed(orders)][::-1]


def test_parts_in_any_order_and_repeated_give_the_same_bytes(
    dataset: Dataset, tmp_path: Path, small_chunks: None
) -> None:
    settings = SETTINGS.model_copy(update={"parts": 3})
    expected = train_word2vec(dataset.folder, Folder(str(tmp_path / "a")), settings, here)
    again = train_word2vec(dataset.folder, Folder(str(tmp_path / "b")), settings, reversed_and_repeated)
    assert again.tobytes() == expected.tobytes()
    other = settings.model_copy(update={"seed": 2})
    assert train_word2vec(dataset.folder, Folder(str(tmp_path / "c")), other, here).tobytes() != expected.tobytes()


def test_another_process_gives_the_same_bytes_as_this_one(dataset: Dataset, tmp_path: Path) -> None:
    expected = train_word2vec(dataset.folder, Folder(str(tmp_path / "a")), SETTINGS, here)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = train_word2vec(
            dataset.folder, Folder(str(tmp_path / "b")), SETTINGS, lambda work, orders, title: pool.map(work, orders)
        )
    assert there.tobytes() == expected.tobytes()


def test_a_stopped_training_goes_on_where_it_was(dataset: Dataset, tmp_path: Path, small_chunks: None) -> None:
    settings = SETTINGS.model_copy(update={"parts": 2})
    expected = train_word2vec(dataset.folder, Folder(str(tmp_path / "a")), settings, here)
    work, done = Folder(str(tmp_path / "b")), []

    def stop_in_third_round(work, orders, title):
        if len(done) == 2:
            work(orders[0])
            raise ConnectionError("the cluster is gone")
        return here(work, orders, title)

    with pytest.raises(ConnectionError):
        train_word2vec(dataset.folder, work, settings, stop_in_third_round, lambda *progress: done.append(progress))
    rounds = []
    resumed = train_word2vec(
        dataset.folder, work, settings, here, on_progress=lambda now, total: rounds.append((now, total))
    )
    assert rounds[0] == (3, rounds[-1][1])
    assert resumed.tobytes() == expected.tobytes()
    assert work.names() == [], "files of rounds are removed in the end"


def test_a_stopped_training_with_other_settings_is_not_continued(dataset: Dataset, tmp_path: Path) -> None:
    work = Folder(str(tmp_path / "a"))
    word2vec.train_tables(dataset.folder, work, SETTINGS, here)
    other = SETTINGS.model_copy(update={"seed": 2})
    mixed = train_word2vec(dataset.folder, work, other, here)
    assert mixed.tobytes() == train_word2vec(dataset.folder, Folder(str(tmp_path / "b")), other, here).tobytes()


def test_damaged_tables_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    def damage(work, orders, title):
        (file,) = here(work, orders, title)
        path = Path(tmp_path, "word2vec-rounds", file)
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        return [file]

    with pytest.raises(UserError, match="does not match its checksum"):
        train_word2vec(dataset.folder, Folder(str(tmp_path)), SETTINGS, damage)


def test_a_corpus_without_frequent_tokens_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lower min_count"):
        train_word2vec(dataset.folder, Folder(str(tmp_path)), SETTINGS.model_copy(update={"min_count": 10**6}), here)


def test_vectors_that_explode_are_not_written(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(TrainingDivergedError, match="learning_rate below"):
        train_word2vec(dataset.folder, Folder(str(tmp_path)), SETTINGS.model_copy(update={"learning_rate": 1e30}), here)


def test_every_chunk_is_read_once_in_every_epoch() -> None:
    for num_parts in (1, 2, 3, 7):
        plan = Plan(num_tokens=123 * word2vec._CHUNK_TOKENS - 5, num_parts=num_parts, epochs=2)
        rounds = range(plan.rounds_per_epoch, plan.num_rounds)
        seen = [chunk for part in range(num_parts) for round_ in rounds for chunk in plan.chunks(part, round_)]
        assert seen == list(range(123))


def test_the_number_of_parts_follows_the_number_of_tokens(dataset: Dataset) -> None:
    manifest = read_manifest(dataset.folder)
    large = manifest.model_copy(
        update={
            "splits": {**manifest.splits, "train": [manifest.splits["train"][0].model_copy(update={"stop": 10**8})]}
        }
    )
    assert make_plan(manifest, SETTINGS).num_parts == 1
    assert make_plan(manifest, SETTINGS.model_copy(update={"parts": 8})).num_parts == 1, "too little for two"
    assert make_plan(large, SETTINGS).num_parts == 6


def test_rows_move_by_the_mean_of_those_who_moved_them() -> None:
    start = {"input": torch.zeros(3, 1)}
    parts = [{"input": torch.tensor([[2.0], [4.0], [0.0]])}, {"input": torch.tensor([[4.0], [0.0], [0.0]])}]
    assert average(start, iter(parts))["input"].flatten().tolist() == [3.0, 4.0, 0.0]


def test_the_threads_of_this_process_are_left_as_they_were(dataset: Dataset, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    train_word2vec(dataset.folder, Folder(str(tmp_path)), SETTINGS, here)
    assert torch.get_num_threads() == threads
