"""Contributions as bytes, error feedback, and the ordered mean."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparklm.training.sync.codec import BLOCK, Codec, ErrorFeedback, ordered_mean, slice_bounds


@given(
    st.integers(1, 5 * BLOCK),
    st.integers(1, 7),
    st.sampled_from(["none", "fp16", "bf16", "int8"]),
    st.floats(0, 1),
)
def test_slices_of_a_vector_decode_to_what_the_whole_decodes_to(
    length: int, num_slices: int, wire_dtype: str, part: float
) -> None:
    codec = Codec(wire_dtype=wire_dtype, num_lossy=int(part * length))
    vector = torch.randn(length, generator=torch.Generator().manual_seed(length)) * 0.01
    bounds = slice_bounds(length, num_slices)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == length
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    encoded = [codec.encode(vector[start:stop], start) for start, stop in bounds]
    decoded = [codec.decode(data, start, stop - start) for data, (start, stop) in zip(encoded, bounds, strict=True)]
    whole = codec.round_trip(vector)
    assert torch.equal(torch.cat(decoded), whole)
    assert torch.equal(codec.round_trip(whole), whole), "what was decoded is encoded again by storage"
    assert torch.equal(whole[codec.num_lossy :], vector[codec.num_lossy :])
    error = {"none": 0.0, "fp16": 1e-3, "bf16": 8e-3, "int8": 0.005}[wire_dtype]
    assert (whole - vector).abs().max() <= error * vector.abs().max() + 1e-7
    assert codec.encode(vector, 0).numel() == codec.encoded_bytes(length)


def test_what_compression_loses_is_contributed_later() -> None:
    codec = Codec(wire_dtype="int8", num_lossy=BLOCK)
    truth = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    feedback, decoded = ErrorFeedback(codec), torch.zeros(BLOCK)
    for _ in range(50):
        decoded += feedback.compress(truth.clone())
    assert (decoded / 50 - truth).abs().max() < 1e-3 < (codec.round_trip(truth) - truth).abs().max()


def test_a_mean_is_taken_in_order() -> None:
    vectors = [torch.tensor([1.0]), torch.tensor([2.0**-24]), torch.tensor([2.0**-24])]
    assert ordered_mean(vectors) != ordered_mean(list(reversed(vectors)))
