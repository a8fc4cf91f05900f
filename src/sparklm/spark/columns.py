"""What a trained model says of a column of texts, as a column: lazy, null where the text is null.

Only the texts travel to Python, in Arrow batches; the other columns of the rows stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F

from sparklm.inference.generate import generate_texts
from sparklm.inference.predict import predict_next
from sparklm.inference.prompts import encode_prompt
from sparklm.inference.sampling import Sampling, row_seed
from sparklm.inference.scoring import score_texts
from sparklm.spark.shared_model import SharedModel

SCORE = "struct<loss: double, perplexity: double, bitsPerByte: double, tokens: bigint, bytes: bigint>"
CANDIDATES = "array<struct<id: int, token: string, probability: double>>"


def score_column(shared: SharedModel, text: Column) -> Column:
    """How well the model predicts each text; of an empty one, only the counts are known."""

    def score(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        trained = shared.load()
        for batch in batches:
            scores = _where_present(lambda texts: score_texts(trained, texts), batch)
            fields = {"loss": "loss", "perplexity": "perplexity", "bitsPerByte": "bits_per_byte"}
            fields |= {"tokens": "tokens", "bytes": "bytes"}
            columns = {field: [getattr(each, name, None) for each in scores] for field, name in fields.items()}
            yield pd.DataFrame(columns, dtype=object)

    return F.when(text.isNotNull(), F.pandas_udf(score, SCORE)(text))


def generate_column(shared: SharedModel, text: Column, max_new_tokens: int, sampling: Sampling) -> Column:
    """Each text and what follows it, by a seed of its own, so that it does not matter where the row is."""

    def generate(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        trained = shared.load()

        def go_on(prompts: Sequence[str]) -> list[str]:
            seeds = [row_seed(sampling.seed, prompt) for prompt in prompts]
            return [each.text for each in generate_texts(trained, prompts, max_new_tokens, sampling, seeds)]

        for batch in batches:
            yield pd.Series(_where_present(go_on, batch), dtype=object)

    return F.pandas_udf(generate, "string")(text)


def predict_column(shared: SharedModel, text: Column, top: int) -> Column:
    """The likeliest tokens to follow each text, best first."""

    def predict(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        trained = shared.load()

        def candidates(texts: Sequence[str]) -> list[list[dict[str, Any]]]:
            contexts = (encode_prompt(trained, each)[0] for each in texts)
            return [
                [
                    {"id": found.token_id, "token": found.text, "probability": found.score}
                    for found in predict_next(trained, context, top)
                ]
                for context in contexts
            ]

        for batch in batches:
            yield pd.Series(_where_present(candidates, batch), dtype=object)

    return F.pandas_udf(predict, CANDIDATES)(text)


def _where_present(work: Callable[[Sequence[str]], Sequence[Any]], texts: pd.Series) -> list[Any]:
    """What some work makes of the texts that are there; None for the others."""
    results = iter(work(list(texts.dropna())))
    return [None if is_missing else next(results) for is_missing in texts.isna()]
