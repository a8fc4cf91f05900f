"""`sparklm predict`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm.cli.options import Device, Json, Model, open_model, print_note
from sparklm.errors import UserError

if TYPE_CHECKING:
    from sparklm.models.model_zip import TrainedModel


def predict(
    model: Model,
    context: Annotated[str | None, typer.Argument(metavar="CONTEXT", help="The text so far.")] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many tokens to list.")] = 5,
    dataset: Annotated[
        str | None, typer.Option(metavar="DIR", help="Instead of a context: the windows of a prepared dataset.")
    ] = None,
    first: Annotated[int, typer.Option(min=1, metavar="N", help="How many windows of the dataset to show.")] = 5,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """List the likeliest next tokens with their scores."""
    if (context is None) == (dataset is None):
        raise UserError("give a context, or --dataset DIR: one of them")
    trained = open_model(model, device)
    if dataset is not None:
        _print_trials(trained, dataset, top, first, as_json)
    else:
        _print_next(trained, str(context), top, as_json)


def _print_next(trained: TrainedModel, context: str, top: int, as_json: bool) -> None:
    from sparklm.inference.predict import predict_next
    from sparklm.inference.prompts import encode_prompt

    tokens, note = encode_prompt(trained, context)
    print_note(note)
    candidates = predict_next(trained, tokens, top)
    if as_json:
        print(json.dumps([asdict(candidate) for candidate in candidates], ensure_ascii=False))
        return
    print(f"{'rank':>4}  {'id':>6}  {'score':>8}  token")
    for rank, candidate in enumerate(candidates, start=1):
        token = json.dumps(candidate.text, ensure_ascii=False)
        print(f"{rank:>4}  {candidate.token_id:>6}  {math.floor(candidate.score * 1e6) / 1e6:>8.6f}  {token}")


def _print_trials(trained: TrainedModel, dataset: str, top: int, first: int, as_json: bool) -> None:
    """Print what a model predicts after the windows of its text, and how many it has learned."""
    from sparklm.evaluation import open_dataset
    from sparklm.inference.predict import try_windows

    trials = list(try_windows(trained, open_dataset(trained, dataset), top))
    if as_json:
        print(json.dumps([asdict(trial) for trial in trials], ensure_ascii=False))
        return
    for number, trial in enumerate(trials[:first]):
        indices = ", ".join(str(candidate.token_id) for candidate in trial.candidates)
        print(f"Sequence {number} - Label max index: {trial.label}, Top {top} Prediction indices: {indices}")
        print(f"Sequence {number} - Label (translated): {trial.label_text}")
        for candidate in trial.candidates:
            print(f"Prediction index: {candidate.token_id} (translated: {candidate.text}), Score: {candidate.score}")
    unique = [trial for trial in trials if trial.is_unique]
    learned = sum(trial.is_learned for trial in unique)
    print(
        f"{learned} of {len(unique)} windows with a unique continuation have it as the likeliest token "
        f"({len(trials)} windows looked at)"
    )
