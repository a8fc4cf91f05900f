"""What the benchmarks compute by themselves; their measurements are not for tests."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

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


def test_every_contestant_gets_about_the_same_number_of_parameters() -> None:
    models = load("models")
    for contestant in models.CONTESTANTS:
        unsized = models.Trial(contestant, "dataset", 1024, 64, 1, "muon", 1e-2)
        config = models.with_width(unsized, 67, 900_000).config()
        assert models.count_parameters(config, 67) == pytest.approx(900_000, rel=0.05)
