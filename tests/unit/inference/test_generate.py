"""Generation: sampling, prompts and seeds."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparklm.config import GenerationConfig
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.inference.generate import generate_text, generate_texts, generate_tokens
from sparklm.inference.predict import predict_next
from sparklm.inference.prompts import encode_prompt, prompt_of
from sparklm.inference.sampling import Sampling, choose_tokens
from sparklm.models.build import build_model
from sparklm.models.cache import Cache
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.conftest import run_job, tiny_config
from tests.corpora import make, opened, write_corpus


@pytest.fixture(scope="module")
def trained(finished_run: Path) -> TrainedModel:
    return load_model(str(finished_run / "model.zip"))


def test_the_same_seed_gives_the_same_text_and_another_does_not(trained: TrainedModel) -> None:
    texts = [generate_text(trained, "The quick", 40, Sampling(seed=seed, temperature=1.0)).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The quick")


def test_prompts_together_give_what_each_gives_alone(trained: TrainedModel) -> None:
    prompts = ["The quick", "", "Pack my box", "x" * 40, "The", "How vexingly quick daft zebras jump"]
    seeds = [5, 5, 6, 7, 8, 9]
    for sampling in (
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_k=9),
        Sampling(temperature=0.9, top_p=0.8),
    ):
        together = generate_texts(trained, prompts, 50, sampling, seeds)  # three times the context
        alone = [
            generate_text(trained, prompt, 50, replace(sampling, seed=seed))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        assert together == alone
        assert len({text.text for text in together}) == len(prompts)
    assert generate_texts(trained, [], 5, Sampling(), []) == []


@pytest.mark.parametrize("top_k", [None, 7])
def test_a_draw_is_that_of_multinomial(top_k: int | None) -> None:
    scores = torch.randn(20, generator=torch.Generator().manual_seed(1)).sort(descending=True).values
    for seed in range(20):
        (chosen,) = choose_tokens(
            scores[None], Sampling(temperature=1.0, top_k=top_k), [torch.Generator().manual_seed(seed)]
        )
        cut = torch.softmax(scores[:top_k] - scores.max(), dim=-1)
        assert chosen == torch.multinomial(cut, 1, generator=torch.Generator().manual_seed(seed)).item()


def test_a_long_prompt_is_whole_in_the_text_though_the_model_sees_its_end(trained: TrainedModel) -> None:
    generated = generate_text(trained, "x" * 40, 3, Sampling(temperature=0))
    assert generated.text.startswith("x" * 40)
    assert "24 tokens longer than the context of 16" in generated.note


def test_generation_goes_on_beyond_the_context(trained: TrainedModel) -> None:
    context_length = trained.model.shape.context_length
    prompt, note = encode_prompt(trained, "x" * (context_length + 9))
    assert len(prompt) == context_length
    assert "9 tokens longer" in note
    never_ends = copy.deepcopy(trained.model)
    with torch.no_grad():  # the end of the text scores as the opposite of what follows "x"
        hidden = never_ends.features(torch.tensor([prompt]))[0].mean(0)
        never_ends.model.embed_tokens.weight[trained.tokenizer.end_of_text] = -1e3 * hidden
    endless = TrainedModel(model=never_ends, tokenizer=trained.tokenizer)
    tokens = list(generate_tokens(endless, prompt, 3 * context_length, Sampling(temperature=0)))
    assert len(tokens) == 3 * context_length


def test_an_empty_prompt_begins_a_document(trained: TrainedModel) -> None:
    assert encode_prompt(trained, "") == ([trained.tokenizer.end_of_text], None)


def test_without_temperature_the_likeliest_token_is_taken(trained: TrainedModel) -> None:
    prompt, _ = encode_prompt(trained, "The quick")
    (token,) = generate_tokens(trained, prompt, 1, Sampling(temperature=0))
    assert token == predict_next(trained, prompt, 1)[0].token_id


def _drawn(sampling: Sampling) -> set[int]:
    scores = torch.log(torch.tensor([0.1, 0.5, 0.3, 0.1]))
    generator = torch.Generator().manual_seed(0)
    return {choose_tokens(scores[None], sampling, [generator])[0] for _ in range(200)}


def test_top_k_and_top_p_limit_the_choice() -> None:
    assert _drawn(Sampling(temperature=1.0)) == {0, 1, 2, 3}
    assert _drawn(Sampling(temperature=1.0, top_k=2)) == {1, 2}
    assert _drawn(Sampling(temperature=1.0, top_p=0.6)) == {1, 2}
    assert _drawn(Sampling(temperature=1.0, top_p=0.5)) == {1}
    assert _drawn(Sampling(temperature=1.0, top_p=0.0001)) == {1}
    assert _drawn(Sampling(temperature=1e-9)) == {1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature -1.0 must be 0 or more"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"top_k": 0}, "top-k 0 must be at least 1"),
        ({"top_p": 0.0}, "top-p 0.0 must be above 0"),
        ({"seed": 2**64}, "seed 18446744073709551616 must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**settings)


def test_a_prompt_that_is_no_text_is_refused(trained: TrainedModel) -> None:
    with pytest.raises(UserError, match="not valid UTF-8"):
        encode_prompt(trained, "\udcff")


def test_drawing_follows_the_probabilities() -> None:
    scores = torch.log(torch.tensor([0.2, 0.8]))
    generator = torch.Generator().manual_seed(0)
    share = sum(choose_tokens(scores.expand(2000, -1), Sampling(temperature=1.0), [generator] * 2000)) / 2000
    assert share == pytest.approx(0.8, abs=0.03)


def test_a_prompt_with_unknown_characters_stays_whole_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc " * 200)
    run_job(tiny_config(tmp_path / "a.txt", "data.tokenizer=char"), tmp_path / "run")
    generated = generate_text(load_model(str(tmp_path / "run")), "a€b日", 4, Sampling(temperature=0))
    assert generated.text.startswith("a€b日")
    assert generated.note == "2 tokens of the prompt are unknown to this model"


def prompt_from(tmp_path: Path, texts: dict[str, str], tokenizer: str = "byte", **data) -> str:
    write_corpus(tmp_path, **texts)
    make(tmp_path, tokenizer=tokenizer, **data)
    return prompt_of(GenerationConfig(), opened(tmp_path))


PARAGRAPHS = "It begins here and goes on.\n\nAnother begins there, long after it." * 3
SENTENCES_ONLY = "she went on, as Mr. Smith said to J. Miller. Then came the others; all of them!' And more."


@pytest.mark.parametrize(
    ("texts", "fraction", "prompt"),
    [
        ({"a": "x" * 100, "b": "The first words"}, 0.2, "The"),  # a document begins
        ({"a": PARAGRAPHS}, 0.3, "Another"),  # a paragraph
        ({"a": "one " * 50 + SENTENCES_ONLY}, 0.15, "And"),  # a sentence
        ({"a": "one " * 50 + SENTENCES_ONLY}, 0.3, "Then"),  # and not after Mr. or J.
        ({"a": "no end in sight " * 20}, 0.3, "no end"),  # none: the training text has a beginning
        ({"a": "incomprehensibilities abound " * 20}, 0.3, "incomprehensibilities"),  # one word at least
    ],
)
def test_a_prompt_begins_where_a_sentence_does_and_ends_with_a_word(
    tmp_path: Path, texts: dict[str, str], fraction: float, prompt: str
) -> None:
    assert prompt_from(tmp_path, texts, validation_fraction=fraction) == prompt


def test_a_prompt_holds_as_many_words_as_a_few_tokens_do(tmp_path: Path) -> None:
    text = "Every word is a token of its own in here. " * 10
    data = {"validation": str(tmp_path / "corpus" / "v.txt")}
    assert prompt_from(tmp_path, {"a": text, "v": text}, "word", **data) == "Every word is a token of its own"


def test_a_text_without_spaces_is_cut_between_characters(tmp_path: Path) -> None:
    text = "你好世界。" * 30
    assert prompt_from(tmp_path, {"a": text}, validation_fraction=0.3) == "你好"


def test_the_unknown_token_is_never_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer("word", ["one two three two"], 300)
    model = build_model(resolve(assignments=["model.width=16", "data.window_size=4"]).config, tokenizer.vocab_size)
    trained = TrainedModel(model=model, tokenizer=tokenizer)
    best = int(tokenizer.encode(" two")[0])

    def scores(tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        values = torch.zeros(len(tokens), tokenizer.vocab_size)
        values[:, tokenizer.unknown], values[:, best] = 9.0, 5.0
        return values

    monkeypatch.setattr(model, "decoding", lambda: scores)
    assert list(generate_tokens(trained, [best], 3, Sampling(temperature=0))) == [best] * 3
