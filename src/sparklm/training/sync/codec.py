"""What replicas contribute to a sync: one flat vector each, cut into slices, possibly in a smaller wire dtype.

The mean of such vectors is always taken in the order of the replicas, number by number. So it does not matter who takes
it, nor into how many slices it is cut: the bits are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# Slices begin at multiples of this; in int8 this many neighbouring numbers share a scale.
BLOCK = 1024
WireDtype = Literal["none", "fp16", "bf16", "int8"]
_FLOAT_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_INT8_STEPS = 127.0


def ordered_mean(vectors: Iterable[Tensor]) -> Tensor:
    """Add vectors up one after another, then divide; holds two of them at a time.

    >>> ordered_mean([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]).tolist()
    [2.0, 4.0]
    """
    iterator = iter(vectors)
    total = next(iterator).clone()
    count = 1
    for vector in iterator:
        total += vector
        count += 1
    return _divided(total, float(count))


def slice_bounds(length: int, num_slices: int) -> list[tuple[int, int]]:
    """Cut a length into slices of whole blocks, as equal as can be; where there are too few blocks, some are empty.

    >>> slice_bounds(5000, 2)
    [(0, 3072), (3072, 5000)]
    """
    blocks = -(-length // BLOCK)
    edges = [min(length, -(-blocks * number // num_slices) * BLOCK) for number in range(num_slices + 1)]
    return list(itertools.pairwise(edges))


@dataclass(frozen=True, kw_only=True)
class Codec:
    """Turns slices of a vector into bytes and back. Only the first numbers of the vector may lose precision.

    These are gradients, or changes of weights, whose losses error feedback makes up for; what follows them (optimizer
    state) must stay exact. What was decoded once loses nothing more: storage encodes decoded vectors again.
    """

    wire_dtype: WireDtype
    num_lossy: int

    def encode(self, values: Tensor, start: int) -> Tensor:
        """The bytes of a slice that begins at `start` of the vector."""
        if self.wire_dtype == "none":
            return values.contiguous().view(torch.uint8)
        border = max(0, min(values.numel(), self.num_lossy - start))
        parts = (*self._shrink(values[:border]), values[border:])
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts])

    def decode(self, data: Tensor, start: int, length: int) -> Tensor:
        """The numbers of a slice, from its bytes."""
        # Bytes are copied before they are read as numbers: numbers must begin at places that fit them.
        if self.wire_dtype == "none":
            return (data if data.storage_offset() % 4 == 0 else data.clone()).view(torch.float32)
        num_lossy = max(0, min(length, self.num_lossy - start))
        num_bytes = data.numel() - 4 * (length - num_lossy)
        lossy = self._grow(data[:num_bytes].clone(), num_lossy)
        return torch.cat([lossy, data[num_bytes:].clone().view(torch.float32)])

    def round_trip(self, vector: Tensor) -> Tensor:
        """A whole vector as the other replicas decode it."""
        return vector if self.wire_dtype == "none" else self.decode(self.encode(vector, 0), 0, vector.numel())

    def encoded_bytes(self, length: int) -> int:
        """The bytes of a whole vector on the wire."""
        num_lossy = min(length, self.num_lossy)
        lossy_bytes = {"none": 4 * num_lossy, "int8": num_lossy + 4 * -(-num_lossy // BLOCK)}
        return lossy_bytes.get(self.wire_dtype, 2 * num_lossy) + 4 * (length - num_lossy)

    def _shrink(self, values: Tensor) -> Sequence[Tensor]:
        if self.wire_dtype == "int8":
            padded = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
            scales = _divided(padded.abs().amax(dim=1, keepdim=True), _INT8_STEPS)
            steps = torch.where(scales > 0, padded / scales, 0.0).round_().to(torch.int8)
            return [scales.view(-1), steps.view(-1)[: values.numel()]]
        dtype = _FLOAT_DTYPES[self.wire_dtype]
        largest = torch.finfo(dtype).max
        return [values.clamp(-largest, largest).to(dtype)]

    def _grow(self, data: Tensor, length: int) -> Tensor:
        if self.wire_dtype == "int8":
            num_blocks = -(-length // BLOCK)
            scales = data[: 4 * num_blocks].view(torch.float32)
            steps = data[4 * num_blocks :].view(torch.int8).float()
            return steps * scales.repeat_interleave(BLOCK)[:length]
        return data.view(_FLOAT_DTYPES[self.wire_dtype]).float()


class ErrorFeedback:
    """Compression that makes up for its losses: what one contribution loses is added to the next.

    The residual is what compression has kept from the other replicas so far; without compression there is none.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.residual: Tensor | None = None

    def compress(self, vector: Tensor) -> Tensor:
        """The contribution as the other replicas decode it; the vector may be changed."""
        if self.codec.wire_dtype == "none":
            return vector
        num_lossy = self.codec.num_lossy
        if self.residual is not None:
            vector[:num_lossy] += self.residual
        decoded = self.codec.round_trip(vector)
        self.residual = (vector - decoded)[:num_lossy]
        return decoded


def _divided(values: Tensor, number: float) -> Tensor:
    """Divide in place, by a tensor: by a plain number a GPU multiplies with its inverse, which rounds otherwise."""
    return values.div_(torch.tensor(number, device=values.device))
