"""`sparklm generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklm.cli.options import Model, print_note


def generate(
    model: Model,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What the text starts with; none = a document's beginning.")
    ] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens to add.")] = 120,
    temperature: Annotated[float, typer.Option(min=0.0, metavar="T", help="0 = always the likeliest token.")] = 0.7,
    top_k: Annotated[int, typer.Option(min=1, metavar="N", help="Choose among this many likeliest tokens.")] = 50,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="P",
            help="Choose among the likeliest tokens that have this probability together.",
            show_default="among all that --top-k leaves",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The same seed gives the same text.")] = 0,
) -> None:
    """Write text that goes on from a prompt."""
    from sparklm.inference.generate import generate_text
    from sparklm.inference.sampling import Sampling
    from sparklm.models.model_zip import load_model

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    generated = generate_text(load_model(model), prompt, max_new_tokens, sampling)
    print_note(generated.note)
    print(generated.text)
