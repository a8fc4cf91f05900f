"""A trained model as an object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

from sparklm.errors import UserError
from sparklm.inference.generate import generate_text, generate_texts, stream_text
from sparklm.inference.predict import Candidate, predict_next
from sparklm.inference.prompts import encode_prompt
from sparklm.inference.sampling import Sampling
from sparklm.inference.scoring import Score, score_texts
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.training.device import choose_device


def load(address: str | os.PathLike[str], *, device: str = "auto") -> Model:
    """Load a model: the folder of a run, a model.zip, or a Hugging Face folder; onto a GPU if there is one.

    `device` is auto, cpu or cuda.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device {device!r} is unknown; it is auto, cpu or cuda")
    return Model(load_model(os.fspath(address)).to(choose_device(device)))


class Model:
    """A trained model and its tokenizer."""

    def __init__(self, trained: TrainedModel) -> None:
        self.trained = trained

    def __repr__(self) -> str:
        shape = self.trained.model.shape
        return f"<sparklm.Model: {shape.architecture}, {shape.num_layers} × {shape.width}, {shape.vocab_size:,} ids>"

    @overload
    def generate(self, prompt: str = "", *, stream: Literal[True], **sampling: Any) -> Iterator[str]: ...
    @overload
    def generate(self, prompt: str = "", *, stream: Literal[False] = False, **sampling: Any) -> str: ...
    @overload
    def generate(self, prompt: Sequence[str], *, stream: Literal[False] = False, **sampling: Any) -> list[str]: ...
    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        stream: bool = False,
        **sampling: Any,
    ) -> str | list[str] | Iterator[str]:
        """Go on from a prompt, or from each of several. The text holds the prompt; a stream, what follows it.

        `sampling` is max_new_tokens (120), temperature (0.8), top_k, top_p and seed (0); the same seed gives the same
        text.
        """
        max_new_tokens = sampling.pop("max_new_tokens", 120)
        chosen = Sampling(**sampling)
        if isinstance(prompt, str):
            if stream:
                return stream_text(self.trained, prompt, max_new_tokens, chosen)
            return generate_text(self.trained, prompt, max_new_tokens, chosen).text
        if stream:
            raise UserError("a stream goes on from one prompt; give one, or leave out stream")
        seeds = [chosen.seed] * len(prompt)
        return [each.text for each in generate_texts(self.trained, prompt, max_new_tokens, chosen, seeds)]

    def predict(self, text: str, *, top: int = 5) -> list[Candidate]:
        """The likeliest tokens to follow a text, with their probabilities."""
        if not isinstance(text, str):
            raise UserError(f"predict takes one text, not a {type(text).__name__}")
        if top < 1:
            raise UserError(f"top = {top} must be at least 1")
        return predict_next(self.trained, encode_prompt(self.trained, text)[0], top)

    def score(self, texts: Sequence[str]) -> list[Score]:
        """How well the model predicts each text: every token of it, given those before it in the context."""
        if isinstance(texts, str):
            raise UserError("score takes a list of texts; put this one into a list")
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"score takes texts, and {text!r} is none; leave it out")
        return score_texts(self.trained, texts)
