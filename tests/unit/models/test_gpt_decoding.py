"""Generation's form of the decoder computes what the decoder computes, from weights of its own."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from sparklm.inference.generate import generate_rows
from sparklm.inference.sampling import Sampling
from sparklm.models import gpt_decoding
from sparklm.models.cache import Cache
from sparklm.models.gpt_decoding import GptDecoder
from sparklm.models.model_zip import TrainedModel, pack_model
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.unit.models.test_gpt import make


@pytest.mark.parametrize(("tie", "kv_heads"), [(True, 4), (False, 2), (True, 1)])
@pytest.mark.parametrize("num_rows", [1, 3, 6])
@pytest.mark.parametrize("packs", [True, False])
def test_scores_are_those_of_the_network(
    monkeypatch: pytest.MonkeyPatch, tie: bool, kv_heads: int, num_rows: int, packs: bool
) -> None:
    if not packs:  # as on a GPU, or on a processor that oneDNN does not know
        monkeypatch.setattr(gpt_decoding, "_packs", lambda weight: False)
    model = make(tie=tie, kv_heads=kv_heads)
    tokens = torch.randint(0, 257, (num_rows, 14), generator=torch.Generator().manual_seed(2))
    decode, cache = GptDecoder(model), Cache(room=14)
    with torch.no_grad():
        scores = model(tokens)
        stop = 0
        for part in tokens.split([5, 1, 1, 5, 2], dim=1):
            stop += part.shape[1]
            assert torch.allclose(decode(part, cache), scores[:, stop - 1], atol=1e-4)
    assert cache.length == stop == 14


def test_the_weights_are_copied_only_where_they_fit_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = make(), torch.tensor([[1, 2, 3]])
    copied = model.decoding()
    assert isinstance(copied, GptDecoder)
    monkeypatch.setattr(gpt_decoding, "_MOST_COPIED_BYTES", 1000)
    itself = model.decoding()
    assert not isinstance(itself, GptDecoder)
    with torch.inference_mode():
        assert torch.allclose(copied(tokens, Cache()), itself(tokens, Cache()), atol=1e-4)


def test_a_cache_with_room_writes_in_place() -> None:
    decode, cache = GptDecoder(make()), Cache(room=8)
    places = set()
    for token in range(8):
        decode(torch.tensor([[token]]), cache)
        places |= {store.data_ptr() for stores in cache._layers.values() for store in stores}
    assert len(places) == 2 * 2  # keys and values of two layers
    decode(torch.tensor([[8]]), cache)  # one more than there is room for
    assert cache.length == 9


def test_the_likeliest_texts_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, tokenizer = make(kv_heads=2), make_tokenizer("byte", [], 300)
    zipfile.ZipFile(io.BytesIO(pack_model(model.shape, model.state_dict(), tokenizer))).extractall(tmp_path)
    peer = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    prompts = [[1, 2, 3], [40], [7, 7, 200, 9, 11, 13], [99, 98]]
    texts: list[list[int]] = [[] for _ in prompts]
    trained = TrainedModel(model=model, tokenizer=tokenizer)
    for row, token in generate_rows(trained, prompts, 20, Sampling(temperature=0), [0] * 4):
        texts[row].append(token)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        theirs = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        assert theirs[0, len(prompt) :].tolist()[: len(text)] == text
        assert len(text) == 20 or theirs[0, len(prompt) + len(text)] == tokenizer.end_of_text
