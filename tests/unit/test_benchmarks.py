"""What the benchmarks compute by themselves; their measurements are not for tests."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest

from sparklm.placement.in_process import InProcess

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # as when one of them is run


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def kneser_ney_by_definition(tokens: list[int], vocab_size: int, discounts: list[list[float]]):
    """Interpolated modified Kneser–Ney, as it is written down, for texts of any slowness."""
    counts: dict[int, dict[tuple[int, ...], int]] = {5: Counter(zip(*(tokens[k:] for k in range(5)), strict=False))}
    for length in range(1, 5):
        before = defaultdict(set)
        for place in range(1, len(tokens) - length + 1):
            before[tuple(tokens[place : place + length])].add(tokens[place - 1])
        counts[length] = {gram: len(words) for gram, words in before.items()}

    def probability(context: tuple[int, ...], word: int) -> float:
        length = len(context) + 1
        shorter = 1 / vocab_size if length == 1 else probability(context[1:], word)
        following = {gram[-1]: count for gram, count in counts[length].items() if gram[:-1] == context}
        if not following:
            return shorter
        take = discounts[length - 1]
        count = following.get(word, 0)
        left_over = sum(take[min(other, 3)] for other in following.values())
        return (count - take[min(count, 3)] + left_over * shorter) / sum(following.values())

    return probability


def test_the_5_gram_model_is_kneser_and_neys() -> None:
    random, tokens = np.random.default_rng(0), [0]
    for _ in range(2_000):
        tokens.append(int(3 * tokens[-1] + random.geometric(0.4)) % 12)
    model = load("lstm_quality").KneserNey(np.array(tokens), 12)
    by_definition = kneser_ney_by_definition(tokens, 12, [level.discounts.tolist() for level in model.levels])
    rows = np.concatenate(
        (np.lib.stride_tricks.sliding_window_view(np.array(tokens), 5)[:40], random.integers(0, 12, (40, 5)))
    )
    expected = [by_definition(tuple(row[:-1]), row[-1]) for row in rows.tolist()]
    assert model.probabilities(rows) == pytest.approx(expected)
    model.check(rows[-3:])


def test_discounts_are_chen_and_goodmans() -> None:
    counts = np.repeat([1, 2, 3, 4, 9], [100, 40, 20, 10, 5])
    share = 100 / 180
    expected = [0, 1 - 2 * share * 40 / 100, 2 - 3 * share * 20 / 40, 3 - 4 * share * 10 / 20]
    assert load("lstm_quality")._discounts(counts) == pytest.approx(expected)


def test_the_table_goes_between_its_own_markers(tmp_path: Path) -> None:
    document = tmp_path / "models.md"
    document.write_text(
        "# A\n\n<!-- models:one -->\nold\n<!-- /models -->\n\n# B\n\n<!-- models:two -->\n<!-- /models -->\n"
    )
    reporting = load("reporting")
    for _ in range(2):
        reporting.rewrite(document, "models", "two", "new")
    assert document.read_text().endswith("# B\n\n<!-- models:two -->\n\nnew\n\n<!-- /models -->\n")
    assert "models:one -->\nold\n<!-- /models" in document.read_text()
    with pytest.raises(SystemExit, match="models:three"):
        reporting.rewrite(document, "models", "three", "new")


def test_what_is_compared_takes_turns_and_is_written_down(tmp_path: Path) -> None:
    measuring, reporting = load("measuring"), load("reporting")
    turns: list[str] = []
    own, other, *_ = measuring.take_turns(lambda: turns.append("own"), lambda: turns.append("other"), 2)
    assert turns == ["own", "other"] * 2
    assert len(own) == len(other) == 2
    comparison = measuring.Comparison(
        work="a", peer="b", seconds=[1, 2, 4], peer_seconds=[2, 6, 16], amount=8, unit="tokens/s", remark="equal"
    )
    assert comparison.cells(reporting.spread)[2:] == [
        "4 (2 to 8) tokens/s",
        "1.33 (0.5 to 4) tokens/s",
        "3 (2 to 4)",
        "equal",
    ]
    measuring.Comparisons(machine="m", comparisons=[comparison]).save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["comparisons"][0]["median_ratio"] == 3


def test_long_lines_of_a_document_are_wrapped_but_tables_are_not() -> None:
    row = "| " + "cell | " * 30
    lines = load("reporting").wrapped(f"* {'word ' * 40}\n\n{row}").splitlines()
    assert [line[:7] for line in lines] == ["* word ", "  word ", "", "| cell "]
    assert max(map(len, lines[:2])) < 120


@pytest.mark.matrix
def test_every_contestant_gets_about_the_same_number_of_parameters() -> None:
    models = load("models")
    for contestant in models.CONTESTANTS:
        unsized = models.Trial(contestant, "dataset", 1024, 64, 1, "muon", 1e-2)
        config = models.with_width(unsized, 67, 900_000).config()
        assert models.count_parameters(config, 67) == pytest.approx(900_000, rel=0.05)


def measured(**changes: float):
    scaling = load("scaling")
    figures = {"step_seconds": 0.1, "seconds_per_task": 0.003, **changes}
    return scaling.Measured(
        machine="",
        parameters=10**6,
        tokens_per_step=512,
        collective=scaling.Cost(fixed_seconds=0.002, seconds_per_byte=2e-9),
        storage=scaling.Cost(fixed_seconds=0.4, seconds_per_byte=4e-9),
        **figures,
    )


def predicted(replicas: int, exchange: str, steps: int, gigabits: float = 10, **network: float) -> float:
    scaling = load("scaling")
    return scaling.efficiency(
        replicas,
        scaling.Method(name="", steps=steps, exchange=exchange),
        scaling.Work(num_bytes=4e7, step_seconds=0.1, steps=steps),
        measured(),
        scaling.Network(link=gigabits * scaling.GIGABIT, message_seconds=5e-5, **network),
    )


@pytest.mark.parametrize("exchange", ["collective", "storage"])
def test_predicted_efficiency_has_the_right_limits(exchange: str) -> None:
    assert predicted(1, exchange, 1) == 1
    assert predicted(1024, exchange, 10**9) == pytest.approx(1, abs=1e-4)
    by_replicas = [predicted(replicas, exchange, 50) for replicas in (1, 2, 4, 32, 1024)]
    assert by_replicas == sorted(by_replicas, reverse=True)
    by_bandwidth = [predicted(32, exchange, 50, gigabits) for gigabits in (0.1, 1, 10, 100)]
    assert by_bandwidth == sorted(by_bandwidth)
    by_steps = [predicted(32, exchange, steps) for steps in (1, 50, 500)]
    assert by_steps == sorted(by_steps)


def test_a_collective_sync_costs_what_is_sent_and_a_message_for_each_slice() -> None:
    scaling = load("scaling")
    cost = scaling.Cost(fixed_seconds=0.5, seconds_per_byte=1e-6)
    network = scaling.Network(link=1e6, message_seconds=0.01)
    assert scaling.collective_seconds(4, 1e6, cost, network) == pytest.approx(0.5 + 1 + 2 * 3 / 4 + 2 * 3 * 0.01)


def test_storage_that_all_share_can_be_what_holds_replicas_up() -> None:
    assert predicted(1024, "storage", 50, storage=1.25e9) < predicted(1024, "storage", 50)
    assert predicted(1024, "storage", 50, storage=1e15) == predicted(1024, "storage", 50)


def test_a_storage_round_cuts_means_as_training_does() -> None:
    from sparklm.training.sync import storage

    scaling = load("scaling")
    assert (scaling._SMALLEST_SLICE, scaling._MOST_SLICES) == (storage._SMALLEST_SLICE, storage._MOST_SLICES)
    free = scaling.Cost(fixed_seconds=0, seconds_per_byte=0)
    network = scaling.Network(link=1.0, message_seconds=0)
    # Two replicas, two slices: six vectors through the link of the first, and its slice: both vectors, and the mean.
    vector = 4 * 2**20
    assert scaling.storage_seconds(2, vector, 2, free, 0, network) == pytest.approx((6 + 3 / 2) * vector)
    assert scaling.storage_seconds(2, vector, 2, free, 1.0, network) == pytest.approx((6 + 3 / 2) * vector + 4)


def test_costs_are_a_line_through_the_measurements_and_never_negative() -> None:
    scaling = load("scaling")
    line = scaling.fit_cost([4e6, 4e7], [0.3, 0.66])
    assert (line.fixed_seconds, line.seconds_per_byte) == (pytest.approx(0.26), pytest.approx(1e-8))
    assert scaling.fit_cost([1, 2], [0.4, 0.3]).seconds_per_byte == 0


def strategy_settings(**changes: object):
    values = {"replicas": 2, "tokens": 4096, "search_tokens": 512, "vocab_size": 512, "window": 32, "batch_size": 2}
    strategies = load("strategies")
    return strategies, strategies.Settings(
        corpus="a.txt",
        master="none",
        validation_fraction=0.01,
        layers=1,
        width=32,
        threads=1,
        outer_momentum=0.9,
        seed=1,
        **{**values, **changes},
    )


def test_all_strategies_see_the_same_tokens_in_the_same_steps() -> None:
    strategies, settings = strategy_settings()
    for method in strategies.methods([0.7, 0.9]):
        config = strategies.make_config(settings, method, "dataset", "muon", 1e-2, settings.tokens)
        assert config.distributed.replicas * config.training.batch_size == 4
        assert config.training.max_steps == 4096 // (4 * 32)
    names = [method.name for method in strategies.methods([0.7, 0.9])]
    assert len(set(names)) == len(names) == 12


def comparison():
    strategies, settings = strategy_settings()
    common = {"optimizer": "muon", "learning_rate": 0.01, "seconds": 2.0, "exchange": "in turn"}
    return strategies, strategies.Results(
        settings=settings,
        machine="a machine",
        parameters=10**6,
        train_tokens=10**6,
        validation_tokens=10**4,
        searches=[strategies.Search(optimizer="muon", losses={0.005: 3.5, 0.01: 3.0, 0.1: None})],
        rows=[
            strategies.Row(method="allreduce", loss=2.0, exchanged_bytes=800_000_000, **common),
            strategies.Row(method="diloco at 500", loss=2.02, exchanged_bytes=1_600_000, **common),
            strategies.Row(method="averaging at 5", loss=None, exchanged_bytes=0, **common),
        ],
    )


def test_rows_are_set_against_the_allreduce_of_their_optimizer(tmp_path: Path) -> None:
    strategies, results = comparison()
    diloco, diverged = strategies.table(results).splitlines()[-2:]
    assert diloco == ("| muon, 0.01 | diloco at 500 | 2.0200 | 1.0100 | 7.5 | 1.6 MB | 500× | 2 | 2,048 | in turn |")
    assert diverged.startswith("| muon, 0.01 | averaging at 5 | diverged |  |  | 0 |")
    assert results.searches[0].best_rate == 0.01
    assert "0.005: 3.500, 0.01: 3.000, 0.1: diverged" in strategies.report(results)


def test_a_comparison_goes_on_only_with_its_own_settings(tmp_path: Path) -> None:
    strategies, results = comparison()
    file = tmp_path / "rows.json"
    assert strategies.open_results(file, results) is results
    results.save(file)
    assert strategies.open_results(file, results.model_copy(update={"rows": []})) == results
    other = results.model_copy(update={"settings": results.settings.model_copy(update={"tokens": 5})})
    with pytest.raises(SystemExit, match="tokens 4096 there, 5 here"):
        strategies.open_results(file, other)


def test_a_row_has_how_its_replicas_synced_and_none_goes_without() -> None:
    strategies = load("strategies")
    single, allreduce = strategies.methods(())[:2]
    here, watcher = InProcess(), strategies.ExchangeWatcher()
    assert [watcher.exchange_of(method, here) for method in (single, allreduce)] == ["", "in turn"]
    on_spark = Mock(takes_turns=False, description="Spark local[2]")
    with pytest.raises(AssertionError, match="local"):
        watcher.exchange_of(allreduce, on_spark)
    watcher.note("using the dataset d")
    watcher.note("replicas sync by storage: distributed.exchange says so")
    assert [watcher.exchange_of(method, on_spark) for method in (single, allreduce)] == ["", "storage"]


def test_the_time_of_a_storage_round_is_taken_apart() -> None:
    tax = load("spark_tax")
    task = {"load": 0.1, "steps": 2.0, "contribute": 0.2, "save": 0.3}
    jobs = []
    for began in (0.0, 4.0, 8.0):
        tasks = [{**task, "task": 2.6}, {**task, "steps": 1.5, "task": 2.1}]
        jobs.append(tax.Job(work="round_task", began=began, ended=began + 2.9, tasks=tasks))
        jobs.append(tax.Job(work="mean_task", began=began + 3, ended=began + 3.5, tasks=[{"task": 0.1}]))
    first, second = tax.round_costs(jobs)
    assert first.overhead == second.overhead == pytest.approx(2.0)
    assert first.start == pytest.approx(0.3)
    assert first.mean == pytest.approx(0.5)
    assert first.commit == pytest.approx(0.6)


def test_rates_are_taken_between_the_first_and_the_last_checkpoint() -> None:
    tax = load("spark_tax")
    setup = tax.Setup(
        dataset="d",
        vocab_size=512,
        window=32,
        batch_size=4,
        layers=1,
        width=32,
        round_seconds=1,
        rounds=2,
        repeats=1,
    )
    config = setup.config(threads=1, steps_of_round=10, rounds=3, distributed__replicas=2)
    commits = [tax.Commit(step=10, seconds=50.0), tax.Commit(step=20, seconds=52.0), tax.Commit(step=30, seconds=54.0)]
    assert tax.tokens_per_second(config, commits) == pytest.approx(2 * 4 * 32 * 20 / 4)
    assert tax.count_parameters(tax.sized(setup, 10**7), 512) == pytest.approx(10**7, rel=0.1)


def test_ratios_are_of_the_same_repeat() -> None:
    tax = load("spark_tax")
    table = tax.rate_table({"base": [100.0, 200.0], "other": [110.0, 180.0]}, "base")
    assert table.splitlines()[-1] == "| other | 145 (110 to 180) | 1.000 (0.900 to 1.100) |"


PASSAGE = "It was the best of times, it was the worst of times;\nit was the age of wisdom. " * 10


@pytest.mark.parametrize("kind", ["shuffled", "misread", "boilerplate", "foreign"])
def test_noise_follows_from_the_seed_and_changes_text_but_little_of_its_length(kind: str) -> None:
    make = load("noise").KINDS[kind]
    made = make(PASSAGE, Random(1))
    assert made == make(PASSAGE, Random(1)) != make(PASSAGE, Random(2))
    assert made != PASSAGE
    assert len(made) == pytest.approx(len(PASSAGE), rel=0.1)


def test_shuffled_words_are_the_same_words_and_misread_ones_are_few() -> None:
    noise = load("noise")
    assert Counter(noise.shuffled(PASSAGE, Random(1)).split()) == Counter(PASSAGE.split())
    right = Counter(PASSAGE.split())
    wrong = Counter(noise.misread(PASSAGE, Random(1)).split()) - right
    assert 0 < wrong.total() < 0.2 * right.total()


def read_arpa(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """The probability and the backoff of each n-gram."""
    lines = [line.split("\t") for line in path.read_text().splitlines() if "\t" in line]
    return {tuple(words.split()): (10 ** float(chance), 10 ** float(backoff)) for chance, words, backoff in lines}


def chance(grams: dict[tuple[str, ...], tuple[float, float]], context: tuple[str, ...], word: str) -> float:
    if (*context, word) in grams:
        return grams[(*context, word)][0]
    return grams.get(context, (0, 1))[1] * chance(grams, context[1:], word)


def test_an_arpa_files_probabilities_add_up_to_one_without_its_rare_n_grams(tmp_path: Path) -> None:
    random, words = np.random.default_rng(0), ["a"]
    for _ in range(500):
        words.append("abcdefgh"[(3 * ord(words[-1]) + random.geometric(0.4)) % 8])
    load("arpa").estimate(words, tmp_path / "toy.arpa")
    grams = read_arpa(tmp_path / "toy.arpa")
    counts = Counter(tuple(words[place : place + 3]) for place in range(len(words) - 2))
    assert {gram for gram in grams if len(gram) == 3} == {gram for gram, count in counts.items() if count > 1}
    assert {len(gram) for gram in grams} == {1, 2, 3, 4, 5}
    contexts = [(), ("a",), ("<unk>",), *(tuple(words[end - 4 : end]) for end in range(4, len(words) + 1, 7))]
    for context in contexts:
        assert sum(chance(grams, context, word) for word in (*"abcdefgh", "<unk>")) == pytest.approx(1, abs=1e-5)


def test_an_arpa_file_of_all_n_grams_has_the_models_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arpa = load("arpa")
    monkeypatch.setattr(arpa, "LEAST_OCCURRENCES", (1,) * 5)
    tokens = np.random.default_rng(0).zipf(1.5, 400) % 8
    arpa.estimate([str(token) for token in tokens], tmp_path / "toy.arpa")
    grams = read_arpa(tmp_path / "toy.arpa")
    rows = np.concatenate((np.lib.stride_tricks.sliding_window_view(tokens, 5)[:40], tokens[:200].reshape(-1, 5)[::-1]))
    expected = arpa.KneserNey(tokens + 1, 9).probabilities(rows + 1)
    found = [chance(grams, tuple(map(str, row[:-1])), str(row[-1])) for row in rows.tolist()]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_lake_has_noise_of_every_kind_and_no_text_that_a_model_is_trained_on(tmp_path: Path) -> None:
    filtering = load("filtering")
    for book in range(10):
        (tmp_path / f"{book}.txt").write_text(" ".join(f"book{book}word{place}" for place in range(3_000)))
    corpus = filtering.deal(tmp_path, 0.01, 40)
    assert corpus == filtering.deal(tmp_path, 0.01, 40)
    assert Counter(document.kind for document in corpus.lake) == {None: 32, **dict.fromkeys(filtering.KINDS, 2)}
    assert sum(map(len, corpus.clean.values())) == pytest.approx(10_000, abs=10)
    parts = [corpus.clean.values(), corpus.held_out, [document.text for document in corpus.lake if not document.kind]]
    books = [{text[: text.index("w")] for text in part} for part in parts]
    assert len(set().union(*books)) == sum(map(len, books))


def test_average_precision_is_the_mean_of_the_precision_at_each_find() -> None:
    scores, is_noise = np.array([0.1, 0.9, 0.8, 0.5]), np.array([False, True, False, True])
    assert load("filtering").average_precision(scores, is_noise) == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_prompts_are_beginnings_of_texts() -> None:
    texts = [" ".join(f"w{number}-{word}" for word in range(30)) for number in range(100)]
    prompts = load("inference").some_prompts(texts)
    assert len(prompts) == 64
    assert all(text.startswith(f"{prompt} ") for prompt, text in zip(prompts, texts, strict=False))
    assert {3, 20} <= {len(prompt.split()) for prompt in prompts}
