"""`sparklm generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklm.cli.options import Model, print_note


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What the text starts with.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add.")] = 120,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 = always the likeliest token.")] = 0.7,
    top_k: Annotated[int, typer.Option(min=1, help="Choose among this many likeliest tokens.")] = 50,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Choose among the likeliest with this total.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
) -> None:
    """Write text that goes on from a prompt."""
    from sparklm.inference.generate import Sampling, generate_text
    from sparklm.models.model_zip import load_model

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    generated = generate_text(load_model(model), prompt, max_new_tokens, sampling)
    print_note(generated.note)
    print(generated.text)
