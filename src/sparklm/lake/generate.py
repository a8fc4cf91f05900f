"""A row for each prompt with the text that a model makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from sparklm.inference.generate import generate_texts
from sparklm.inference.sampling import Sampling, row_seed
from sparklm.lake.parts import Document, Order, Row, Tally, make_part
from sparklm.models.model_zip import TrainedModel

_PROMPTS_AT_ONCE = 512  # that are sorted by length


class Generation(BaseModel):
    """How prompts are gone on from."""

    model_config = ConfigDict(frozen=True)
    max_new_tokens: int = 120
    sampling: Sampling = Sampling()


class GenerateOrder(Order):
    """Asks for the texts of a part."""

    settings: Generation


def generate_part_task(order: str) -> str:
    """Go on from the prompts of a part and write their rows. May run anywhere, any number of times."""
    import pyarrow

    request = GenerateOrder.model_validate_json(order)
    settings = request.settings

    def make_rows(trained: TrainedModel, documents: Iterator[Document], tally: Tally) -> Iterator[Row]:
        while block := list(itertools.islice(documents, _PROMPTS_AT_ONCE)):
            prompts = [document.data.decode() for document in block]
            seeds = [row_seed(settings.sampling.seed, document.key) for document in block]
            texts = generate_texts(trained, prompts, settings.max_new_tokens, settings.sampling, seeds)
            for document, prompt, generated in zip(block, prompts, texts, strict=True):
                tally.documents += 1
                tally.bytes += len(document.data)
                tally.notes += generated.note is not None
                yield {"key": document.key, "prompt": prompt, "text": generated.text}

    return make_part(request, {"prompt": pyarrow.string(), "text": pyarrow.string()}, make_rows)
