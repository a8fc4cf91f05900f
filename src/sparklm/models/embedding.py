"""The way in: a vector for each token, with its place in the window.

Shapes: B batch, T time, E embedding size, V vocabulary, D head size, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparklm.models.shape import ModelShape


class TokenEmbedding(nn.Module):
    """Looks up each token's vector and adds its position's, sinusoidal or learned, where the network wants that."""

    sinusoids: Tensor | None  # of the places that `reserve` was asked for

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.embedding_size)
        self.tokens.weight.requires_grad = not shape.freeze_embeddings
        self.places = nn.Embedding(shape.context_length, shape.embedding_size) if shape.positions == "learned" else None
        self.is_sinusoidal = shape.positions == "sinusoidal"
        self.register_buffer("sinusoids", None, persistent=False)
        self.dropout = nn.Dropout(shape.dropout)

    def reserve(self, length: int) -> None:
        """Have the sinusoids of at least so many places."""
        weight_VE = self.tokens.weight
        if not self.is_sinusoidal or (self.sinusoids is not None and len(self.sinusoids) >= length):
            return
        with torch.inference_mode(False):  # whoever asks first; training may be next
            self.sinusoids = sinusoids(torch.arange(2 * length, device=weight_VE.device), weight_VE.shape[1])

    def forward(self, tokens_BT: Tensor, start: int = 0) -> Tensor:
        """Embed tokens of which the first stands at place `start`."""
        x_BTE = self.tokens(tokens_BT)
        stop = start + tokens_BT.shape[1]
        if self.places is not None:
            x_BTE = x_BTE + self.places(torch.arange(start, stop, device=tokens_BT.device))
        if self.is_sinusoidal:
            self.reserve(stop)
            x_BTE = x_BTE + self.sinusoids[start:stop].to(x_BTE.dtype)  # type: ignore[index]
        return self.dropout(x_BTE)  # type: ignore[no-any-return]


def sinusoids(places_T: Tensor, size: int) -> Tensor:
    """Each place's vector: sines in the even components, cosines in the odd ones, of ever slower waves.

    >>> sinusoids(torch.arange(2), 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    even = torch.arange(0, size, 2, dtype=torch.float32, device=places_T.device)
    angles = places_T[:, None] * 10_000.0 ** (-even / size)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size]


def rotation_table(places_T: Tensor, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the places' angles, repeated for the two halves of a head."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=places_T.device) / head_size
    angles = places_T[:, None].float() * (1.0 / base**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x_BHTD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (d, d + D/2) by its position's angle."""
    cosine_TD, sine_TD = rotation
    first, second = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cosine_TD + torch.cat((-second, first), dim=-1) * sine_TD
