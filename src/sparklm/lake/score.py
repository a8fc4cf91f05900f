"""A row for each document that says how well a model predicts it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from sparklm.errors import UserError
from sparklm.inference.scoring import Score, score_documents
from sparklm.lake.parts import Document, Order, Row, Tally, make_part
from sparklm.models.model_zip import TrainedModel

Figure = Literal["bits_per_byte", "loss", "perplexity"]


class Scoring(BaseModel):
    """Which documents get a row, and what is in it beside the figures."""

    model_config = ConfigDict(frozen=True)
    surprises: bool = False
    with_text: bool = False
    keep_below: float | None = None  # the text is there as well
    by: Figure = "bits_per_byte"

    def check(self) -> None:
        """Refuse what is no limit."""
        if self.keep_below is not None and math.isnan(self.keep_below):
            raise UserError("--keep-below nan is no limit; give a number")

    @property
    def has_text(self) -> bool:
        """Whether the rows hold the text."""
        return self.with_text or self.keep_below is not None

    def keeps(self, score: Score) -> bool:
        """Whether a document gets a row; of an empty one nothing is known, so it is not below anything."""
        return self.keep_below is None or getattr(score, self.by) < self.keep_below


class ScoreOrder(Order):
    """Asks for the scores of a part."""

    settings: Scoring


def score_part_task(order: str) -> str:
    """Score the documents of a part and write their rows. May run anywhere, any number of times."""
    import pyarrow

    request = ScoreOrder.model_validate_json(order)
    settings = request.settings
    columns = {"bytes": pyarrow.int64(), "tokens": pyarrow.int64()}
    columns |= {name: pyarrow.float64() for name in ("loss", "bits_per_byte", "perplexity")}
    columns |= {"surprises": pyarrow.list_(pyarrow.float32())} if settings.surprises else {}
    columns |= {"text": pyarrow.string()} if settings.has_text else {}

    def make_rows(trained: TrainedModel, documents: Iterator[Document], tally: Tally) -> Iterator[Row]:
        to_score, to_write = itertools.tee(documents)
        scores = score_documents(trained, (document.data for document in to_score))
        for document, score in zip(to_write, scores, strict=True):
            tally.documents += 1
            tally.bytes += score.bytes
            tally.tokens += score.tokens
            tally.nats += float(score.surprises.sum(dtype="float64"))
            if settings.keeps(score):
                row = {name: _known(getattr(score, name)) for name in columns if name not in ("surprises", "text")}
                yield {"key": document.key, "surprises": score.surprises, "text": document.data.decode(), **row}

    return make_part(request, columns, make_rows)


def _known(figure: Any) -> Any:
    return None if math.isnan(figure) else figure


assert set(get_args(Figure)) <= set(Score.__dataclass_fields__), "rows are kept by figures of a score"
