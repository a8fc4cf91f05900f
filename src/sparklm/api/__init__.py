"""sparklm in Python: the commands as functions, and what they make as objects.

Settings are those of the command line, by their dotted keys, and checked in the same way; what is wrong raises
`sparklm.errors.UserError` with the same words. A Spark session that is passed in is used and never stopped.

>>> import tempfile, sparklm
>>> place = tempfile.mkdtemp()
>>> tiny = {"data.tokenizer": "byte", "data.window_size": 16, "model.num_layers": 1, "model.width": 16}
>>> texts = ["The quick brown fox jumps over the lazy dog. " * 20] * 3
>>> run = sparklm.train(texts, run=f"{place}/run", master="none", settings=tiny | {"training.max_steps": 5})
>>> len(run.metrics), run.validation_loss > 0
(1, True)
>>> model = sparklm.load(run.path)
>>> model.generate("The quick", max_new_tokens=5, temperature=0).startswith("The quick")
True
>>> "".join(model.generate("The quick", max_new_tokens=5, temperature=0, stream=True)) == model.generate(
...     "The quick", max_new_tokens=5, temperature=0
... ).removeprefix("The quick")
True
>>> [candidate.token_id for candidate in model.predict("The quick", top=2)] == [
...     candidate.token_id for candidate in model.predict("The quick", top=5)[:2]
... ]
True
>>> score, = model.score(["The lazy dog."])
>>> score.tokens, score.bytes, score.bits_per_byte > 0
(13, 13, True)
"""

from __future__ import annotations

from sparklm.api.callbacks import Callback
from sparklm.api.functions import evaluate, generate_corpus, prepare, score_corpus, train
from sparklm.api.model import Model, load
from sparklm.api.run import Run
from sparklm.inference.scoring import Score

__all__ = [
    "Callback",
    "Model",
    "Run",
    "Score",
    "evaluate",
    "generate_corpus",
    "load",
    "prepare",
    "score_corpus",
    "train",
]
