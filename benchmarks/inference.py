"""Scoring and generation against doing it another way, in one run: two tables.

    python benchmarks/inference.py CORPUS [--only scoring] [--work DIR] [--repeats 3] [--json FILE]
                                          [--write docs/python.md]

CORPUS is a file or a folder of text. Models are trained on a part of it (kept in DIR, if given), and asked:

* **Scoring** (4 × 256, 8,192 ids): paragraphs of the corpus, as they come and none longer than the context, against a
  loop over the exported model with `transformers`: batches of 16 paragraphs in their order, padded to the longest, on
  all cores. The losses must be equal to 1e-4.
* **Spark's share**: the same paragraphs by `score_corpus` in this process and on a session of `local[*]` that is there
  and has scored before; its share is what Spark takes longer.
* **Generation** (the preset gpt-small: 6 × 384, 11 M parameters): 128 tokens after one prompt, and 64 tokens after each
  of 64 prompts of 3 to 20 words, always the likeliest ones, against `generate` of `transformers` with the exported
  model: of one prompt; of 64 one by one; of 64 at once, padded on the left. Then the 64 prompts with sampling, against
  doing the same one by one. Texts are compared token by token.

What is compared takes turns, and each turn gives one ratio. OMP_NUM_THREADS says how many threads both have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import Comparison, Comparisons, spark_settings, take_turns
from reporting import machine, make_parser, markdown, publish, spread

import sparklm
from sparklm.inference.generate import generate_rows
from sparklm.inference.prompts import encode_prompt
from sparklm.inference.sampling import Sampling
from sparklm.placement.start import started
from sparklm.text.sources import list_sources

SCORED = {"training.max_steps": 100, "data.window_size": 256, "model.width": 256, "data.vocab_size": 8192}
# What the weights are does not matter to the time; that a text ends early does, and a new model's does not.
GENERATING = {"training.max_steps": 2, "training.batch_size": 4}
PEER_BATCH, PROMPTS, NEW_TOKENS, NEW_TOKENS_OF_ONE = 16, 64, 64, 128
MOST_DIFFERENCE = 1e-4
HEADER = ["", "against", "sparklm", "the other", "times as fast", ""]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="a document; the text is printed if left out")
    parser.add_argument("corpus", metavar="CORPUS")
    parser.add_argument("--only", choices=PARTS, help="one of the two tables")
    parser.add_argument("--work", type=Path, help="where the models are kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--paragraphs", type=int, default=2000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the seconds of all turns go")
    arguments = parser.parse_args()
    made: list[Comparison] = []
    with tempfile.TemporaryDirectory() as temporary:
        for part in [arguments.only] if arguments.only else PARTS:
            about, comparisons = PARTS[part](arguments, arguments.work or Path(temporary))
            made += comparisons
            about = f"{about} Median (lowest to highest) of {arguments.repeats} turns; {_threads()}. {machine()}."
            table = markdown(HEADER, [comparison.cells(spread) for comparison in comparisons])
            publish(f"{about}\n\n{table}", arguments.write, "inference", part)
    Comparisons(machine=machine(), comparisons=made).save(arguments.json)


def measure_scoring(arguments: argparse.Namespace, work: Path) -> tuple[str, list[Comparison]]:
    """Scoring against a loop, and on Spark against here."""
    model = _model(arguments.corpus, work / "run", None, SCORED)
    texts = list(itertools.islice(paragraphs(arguments.corpus, model), arguments.paragraphs))
    size = sum(len(text.encode()) for text in texts) / 1e6
    peer = _Peer(work / "run")
    ours, theirs, scores, losses = take_turns(
        lambda: model.score(texts), lambda: peer.losses(texts, model.trained.tokenizer.end_of_text), arguments.repeats
    )
    difference = max(abs(score.loss - loss) for score, loss in zip(scores, losses, strict=True))
    assert difference < MOST_DIFFERENCE, difference
    here, spark = _shares(texts, work, arguments.repeats)
    shares = [100 * (1 - one / other) for one, other in zip(here, spark, strict=True)]
    common = {"amount": size, "unit": "MB/s"}
    about = (
        f"{_shape(model)}: {len(texts):,} paragraphs, {size:.2f} MB. The largest difference of two losses is "
        f"{difference:.1e}."
    )
    return about, [
        Comparison(work="scoring", peer="a loop with `transformers`", seconds=ours, peer_seconds=theirs, **common),
        Comparison(
            work="scoring on Spark",
            peer="in this process",
            seconds=spark,
            peer_seconds=here,
            remark=f"Spark's share {spread(shares)} %",
            **common,
        ),
    ]


def measure_generation(arguments: argparse.Namespace, work: Path) -> tuple[str, list[Comparison]]:
    """Generation of one text and of many."""
    model = _model(arguments.corpus, work / "small", "gpt-small", GENERATING)
    peer = _Peer(work / "small")
    texts = list(itertools.islice(paragraphs(arguments.corpus, model), PROMPTS))
    prompts = [encode_prompt(model.trained, prompt)[0] for prompt in some_prompts(texts)]
    one = prompts[:1]

    def ours(some: Sequence[list[int]], tokens: int) -> Callable[[], list[list[int]]]:
        return lambda: likeliest(model, some, tokens)

    def theirs(some: Sequence[list[int]], tokens: int) -> Callable[[], list[list[int]]]:
        return lambda: peer.likeliest(some, tokens)

    def each(some: Sequence[list[int]], tokens: int) -> Callable[[], list[list[int]]]:
        return lambda: [text for prompt in some for text in peer.likeliest([prompt], tokens)]

    def sampled() -> list[str]:
        return model.generate(asked, max_new_tokens=NEW_TOKENS, top_k=50, seed=1)

    def sampled_one_by_one() -> list[str]:
        return [model.generate(prompt, max_new_tokens=NEW_TOKENS, top_k=50, seed=1) for prompt in asked]

    asked = some_prompts(texts)
    many = f"{PROMPTS} prompts"
    works = [
        ("one prompt", "`transformers`", ours(one, NEW_TOKENS_OF_ONE), theirs(one, NEW_TOKENS_OF_ONE)),
        (many, "`transformers`, one by one", ours(prompts, NEW_TOKENS), each(prompts, NEW_TOKENS)),
        (many, "`transformers`, at once", ours(prompts, NEW_TOKENS), theirs(prompts, NEW_TOKENS)),
        (f"{many}, sampled", "one by one", sampled, sampled_one_by_one),
    ]
    comparisons = []
    for name, against, first, second in works:
        likeliest(model, one, 4)  # so that the weights are laid out
        own, other, texts_made, texts_expected = take_turns(first, second, arguments.repeats)
        equal = sum(text == expected for text, expected in zip(texts_made, texts_expected, strict=True))
        tokens = NEW_TOKENS_OF_ONE if name == works[0][0] else PROMPTS * NEW_TOKENS
        comparisons.append(
            Comparison(
                work=name,
                peer=against,
                seconds=own,
                peer_seconds=other,
                amount=tokens,
                unit="tokens/s",
                remark=f"{equal} of {len(texts_made)} texts equal",
            )
        )
    parameters = sum(weight.numel() for weight in model.trained.model.parameters()) / 1e6
    return f"{_shape(model)}, {parameters:.1f} M parameters.", comparisons


PARTS = {"scoring": measure_scoring, "generation": measure_generation}


def likeliest(model: sparklm.Model, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """The likeliest tokens after each prompt."""
    texts: list[list[int]] = [[] for _ in prompts]
    for row, token in generate_rows(model.trained, prompts, tokens, Sampling(temperature=0), [0] * len(prompts)):
        texts[row].append(token)
    return texts


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


def _model(corpus: str, run: Path, preset: str | None, settings: dict[str, int]) -> sparklm.Model:
    if not (run / "model.zip").exists():
        sparklm.train(corpus, run=run, master="none", preset=preset, settings=settings)
    return sparklm.load(run, device="cpu")


def _shape(model: sparklm.Model) -> str:
    shape = model.trained.model.shape
    return f"gpt of {shape.num_layers} × {shape.width} and {shape.vocab_size:,} ids"


def _threads() -> str:
    number = torch.get_num_threads()
    return "one thread" if number == 1 else f"{number} threads"


class _Peer:
    """The exported model, as `transformers` has it."""

    def __init__(self, run: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = run.with_name(f"{run.name}-exported")
        zipfile.ZipFile(run / "model.zip").extractall(folder)
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

    def likeliest(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """The likeliest tokens after each prompt, up to the end of the text."""
        batch = self.tokenizer.pad({"input_ids": list(prompts)}, padding_side="left", return_tensors="pt")
        end = self.tokenizer.eos_token_id
        made = self.model.generate(**batch, max_new_tokens=tokens, do_sample=False, pad_token_id=end)
        rows: list[list[int]] = made[:, batch.input_ids.shape[1] :].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]


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
        here, spark, *_ = take_turns(lambda: score(master="none"), lambda: score(spark=session), repeats)
    return here, spark


if __name__ == "__main__":
    main()
