"""Scoring and batched generation against doing it another way, in one run: a table.

    python benchmarks/inference.py CORPUS [--work DIR] [--repeats 3] [--write docs/python.md [--name NAME]]

CORPUS is a file or a folder of text. A gpt is trained on a part of it (kept in DIR, if given), and asked:

* **Scoring**: paragraphs of the corpus, as they come and none longer than the context, against a loop over the exported
  model with `transformers`: batches of 16 paragraphs in their order, padded to the longest, on all cores. The losses
  must be equal to 1e-4.
* **Spark's share**: the same paragraphs by `score_corpus` in this process and on a session of `local[*]` that is there
  and has scored before; its share is what Spark takes longer.
* **Generation**: 64 prompts of 3 to 20 words at once, against one by one. The texts must be equal.

What is compared takes turns, and each repeat gives one ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import spark_settings
from reporting import machine, make_parser, markdown, publish, spread

import sparklm
from sparklm.placement.start import started
from sparklm.text.sources import list_sources

SETTINGS = {"training.max_steps": 100, "data.window_size": 256, "model.width": 256, "data.vocab_size": 8192}
PEER_BATCH, PROMPTS, NEW_TOKENS = 16, 64, 64
MOST_DIFFERENCE = 1e-4


def main() -> None:
    parser = make_parser(__doc__, "inference")
    parser.add_argument("corpus", metavar="CORPUS")
    parser.add_argument("--work", type=Path, help="where the model is kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--paragraphs", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        publish(measure(arguments, arguments.work or Path(temporary)), arguments.write, "inference", arguments.name)


def measure(arguments: argparse.Namespace, work: Path) -> str:
    """The tables, as text."""
    model = _model(arguments.corpus, work / "run")
    texts = list(itertools.islice(paragraphs(arguments.corpus, model), arguments.paragraphs))
    size = sum(len(text.encode()) for text in texts) / 1e6
    peer = _Peer(work)
    rows = []
    ours, theirs, scores, losses = _in_turn(
        lambda: model.score(texts), lambda: peer.losses(texts, model.trained.tokenizer.end_of_text), arguments.repeats
    )
    difference = max(abs(score.loss - loss) for score, loss in zip(scores, losses, strict=True))
    assert difference < MOST_DIFFERENCE, difference
    speed = [size / seconds for seconds in ours]
    rows.append(["scoring", "a loop with `transformers`", *_ratios(ours, theirs), f"{spread(speed)} MB/s"])
    here, spark = _shares(texts, work, arguments.repeats)
    shares = [100 * (1 - one / other) for one, other in zip(here, spark, strict=True)]
    rows.append(["scoring on Spark", "in this process", *_ratios(spark, here), f"Spark's share {spread(shares)} %"])
    prompts = some_prompts(texts)
    at_once, one_by_one, batch, singles = _in_turn(
        lambda: model.generate(prompts, max_new_tokens=NEW_TOKENS, top_k=50, seed=1),
        lambda: [model.generate(each, max_new_tokens=NEW_TOKENS, top_k=50, seed=1) for each in prompts],
        arguments.repeats,
    )
    equal = sum(one == other for one, other in zip(batch, singles, strict=True))
    rows.append(
        ["64 prompts at once", "one by one", *_ratios(at_once, one_by_one), f"{equal} of {PROMPTS} texts equal"]
    )
    header = ["", "against", "seconds", "seconds of the other", "times as fast", ""]
    shape = model.trained.model.shape
    about = (
        f"gpt of {shape.num_layers} × {shape.width} and {shape.vocab_size:,} ids: {len(texts):,} paragraphs, "
        f"{size:.2f} MB; median (lowest to highest) of {arguments.repeats} "
        f"repeats. The largest difference of two losses is {difference:.1e}. {machine()}."
    )
    return f"{about}\n\n{markdown(header, rows)}"


def paragraphs(corpus: str, model: sparklm.Model) -> Iterator[str]:
    """The paragraphs of files, mixed, as far as they fit into a context."""
    texts = [
        text.strip()
        for source in list_sources(corpus)
        for text in Path(source.address).read_text(errors="replace").split("\n\n")
        if text.strip()
    ]
    random.Random(0).shuffle(texts)
    longest = model.trained.model.shape.context_length - 1
    return (text for text in texts if len(model.trained.tokenizer.encode(text)) <= longest)


def some_prompts(texts: Sequence[str]) -> list[str]:
    """The beginnings of some texts, some words each."""
    chance = random.Random(1)
    return [" ".join(text.split()[: chance.randint(3, 20)]) for text in texts[:PROMPTS]]


def _model(corpus: str, run: Path) -> sparklm.Model:
    if not (run / "model.zip").exists():
        sparklm.train(corpus, run=run, master="none", settings=SETTINGS)
    return sparklm.load(run)


class _Peer:
    """The exported model, as `transformers` has it."""

    def __init__(self, work: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = work / "exported"
        zipfile.ZipFile(work / "run" / "model.zip").extractall(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)  # in evaluation mode
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.pad_token = self.tokenizer.eos_token

    @torch.inference_mode()
    def losses(self, texts: Sequence[str], end_of_text: int) -> list[float]:
        """The mean loss of each text, batch by batch."""
        losses: list[float] = []
        first = self.tokenizer.convert_ids_to_tokens(end_of_text)
        for start in range(0, len(texts), PEER_BATCH):
            some = [first + text for text in texts[start : start + PEER_BATCH]]
            batch = self.tokenizer(some, return_tensors="pt", padding=True, padding_side="right")
            logits_BTV, ids_BT = self.model(**batch).logits, batch.input_ids
            each_BT = F.cross_entropy(logits_BTV[:, :-1].transpose(1, 2), ids_BT[:, 1:], reduction="none")
            is_real_BT = batch.attention_mask[:, 1:]
            losses += ((each_BT * is_real_BT).sum(1) / is_real_BT.sum(1)).tolist()
        return losses


def _shares(texts: Sequence[str], work: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of scoring a corpus here and on Spark, in turn."""
    corpus = work / "paragraphs.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with started(spark_settings("local[*]")) as placement, tempfile.TemporaryDirectory() as place:
        session: Any = placement.session  # type: ignore[attr-defined]
        numbers = itertools.count()

        def score(**where: Any) -> None:
            sparklm.score_corpus(corpus, model=work / "run", out=Path(place, str(next(numbers))), **where)

        score(spark=session)  # workers are there, and have the model
        here, spark, *_ = _in_turn(lambda: score(master="none"), lambda: score(spark=session), repeats)
    return here, spark


def _in_turn(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int
) -> tuple[list[float], list[float], Any, Any]:
    """The seconds that each takes, in turn, and what each gives."""
    times: tuple[list[float], list[float]] = ([], [])
    results: list[Any] = [None, None]
    for _ in range(repeats):
        for place, work in enumerate((first, second)):
            began = time.perf_counter()
            results[place] = work()
            times[place].append(time.perf_counter() - began)
    return *times, results[0], results[1]


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    faster = [other / own for own, other in zip(ours, theirs, strict=True)]
    return [spread(ours), spread(theirs), spread(faster)]


if __name__ == "__main__":
    main()
