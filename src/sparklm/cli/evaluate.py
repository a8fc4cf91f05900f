"""`sparklm evaluate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from sparklm.cli.options import Json, Model, TextColumn


def evaluate(
    model: Model,
    corpus: Annotated[
        str | None, typer.Argument(metavar="CORPUS", help="Text, or a prepared dataset; none = the built-in sample.")
    ] = None,
    text_column: TextColumn = None,
    as_json: Json = False,
) -> None:
    """Measure how well a model predicts a text.

    Loss, perplexity, bits per byte, accuracy. Of a prepared dataset, the validation part is measured.
    """
    from sparklm.evaluation import evaluate_corpus
    from sparklm.models.model_zip import load_model

    result = asdict(evaluate_corpus(load_model(model), corpus, text_column or "text"))
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = "undefined" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name.replace('_', ' '):<14} {shown}")
