"""Parts of the decoder on a CPU: each is one operation, whose gradient is written out.

What torch does in many small operations, each with a pass over memory, is done here in few. Where matrix products are
in bfloat16 (autocast), so is what goes into them and comes out of them; norms, angles and sums are computed in float32.

Shapes: B batch, T time, N positions (B · T), C width, F feed-forward size, H heads, G heads of queries and of keys,
D head size, O outputs of several layers.
"""

from __future__ import annotations

import functools
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models.registry import LONGEST_SCORED

Gradients = tuple[Tensor | None, ...]


def is_used(x: Tensor) -> bool:
    """Whether vectors are to be computed with here: torch's compiler puts plain operations together by itself."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def products(x_BTC: Tensor, *weights_OC: Tensor) -> tuple[Tensor, ...]:
    """Multiply the same vectors by several matrices, as one product."""
    made: tuple[Tensor, ...] = _Products.apply(x_BTC, *weights_OC)  # type: ignore[no-untyped-call]
    return made


def feed_forward(x_BTC: Tensor, gate_FC: Tensor, up_FC: Tensor, down_CF: Tensor) -> Tensor:
    """A layer whose values are gated by a SiLU, and one after it."""
    made: Tensor = _FeedForward.apply(x_BTC, gate_FC, up_FC, down_CF)  # type: ignore[no-untyped-call]
    return made


def rms_norm(x: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """Scale vectors to unit root mean square, then by a weight."""
    normed: Tensor = _RmsNorm.apply(x, weight_C, epsilon)  # type: ignore[no-untyped-call]
    return normed


def norm_and_rotate(x_BTGD: Tensor, weight_GD: Tensor, epsilon: float, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Norm each head, and turn each of its pairs of neighbours by the angle of its position: (B, G, T, D)."""
    G, half = weight_GD.shape[0], weight_GD.shape[1] // 2
    cosine_TD, sine_TD = rotation
    turns_TGD = torch.complex(cosine_TD[:, :half], sine_TD[:, :half])[:, None].expand(-1, G, -1).contiguous()
    turned: Tensor = _NormAndRotate.apply(x_BTGD, weight_GD, epsilon, turns_TGD)  # type: ignore[no-untyped-call]
    return turned


def as_pairs(weight: Tensor, head_size: int) -> Tensor:
    """The rows of a matrix, or the numbers of a vector, so that what a rotation pairs are neighbours in each head."""
    halves = weight.view(-1, 2, head_size // 2, *weight.shape[1:])
    return halves.transpose(1, 2).flatten(0, 2)


def is_fitting(query_BHTD: Tensor, key_BKTD: Tensor) -> bool:
    """Whether `attend` is quicker than torch's kernel: in bfloat16, of whole windows that are not long."""
    return (
        is_used(query_BHTD)
        and query_BHTD.dtype == torch.bfloat16
        and query_BHTD.shape == key_BKTD.shape
        and query_BHTD.shape[2] <= LONGEST_SCORED
    )


def attend(query_BHTD: Tensor, key_BHTD: Tensor, value_BHTD: Tensor) -> Tensor:
    """Let every position look at itself and the ones before it."""
    mixed: Tensor = _Attention.apply(query_BHTD, key_BHTD, value_BHTD)  # type: ignore[no-untyped-call]
    return mixed


def whole(x: Tensor) -> Tensor:
    """The same in float32, where it is in half precision."""
    return x.float() if x.dtype == torch.bfloat16 else x


def _halved(x: Tensor) -> Tensor:
    return x.bfloat16() if torch.is_autocast_enabled("cpu") else x


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, *weights_OC: Tensor) -> tuple[Tensor, ...]:
        x_BTC, weight_OC = _halved(x_BTC), torch.cat([_halved(weight) for weight in weights_OC])
        ctx.save_for_backward(x_BTC, weight_OC)
        ctx.ranges = list(pairwise(accumulate((len(weight) for weight in weights_OC), initial=0)))
        made_BTO = F.linear(x_BTC, weight_OC)
        return tuple(made_BTO[..., start:stop] for start, stop in ctx.ranges)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Gradients:
        x_BTC, weight_OC = ctx.saved_tensors
        gradient_BTO = outer[0]
        if len(outer) > 1:
            gradient_BTO = x_BTC.new_empty((*x_BTC.shape[:-1], weight_OC.shape[0]))
            for (start, stop), gradient in zip(ctx.ranges, outer, strict=True):
                gradient_BTO[..., start:stop] = gradient
        of_weights_OC = whole(gradient_BTO.flatten(0, -2).mT @ x_BTC.flatten(0, -2))
        return gradient_BTO @ weight_OC, *(of_weights_OC[start:stop] for start, stop in ctx.ranges)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, gate_FC: Tensor, up_FC: Tensor, down_CF: Tensor) -> Tensor:
        x_NC, both_OC, down_CF = _halved(x_BTC.flatten(0, -2)), _halved(torch.cat((gate_FC, up_FC))), _halved(down_CF)
        made_NO = F.linear(x_NC, both_OC)
        gate_NF, up_NF = made_NO.chunk(2, dim=-1)
        active_NF = F.silu(gate_NF)
        inner_NF = active_NF * up_NF
        ctx.save_for_backward(x_NC, both_OC, down_CF, made_NO, active_NF, inner_NF)
        return F.linear(inner_NF, down_CF).view_as(x_BTC)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Gradients:
        x_NC, both_OC, down_CF, made_NO, active_NF, inner_NF = ctx.saved_tensors
        gate_NF, up_NF = made_NO.chunk(2, dim=-1)
        gradient_NC = outer[0].flatten(0, -2)
        of_inner_NF, gradient_NO = gradient_NC @ down_CF, torch.empty_like(made_NO)
        of_gate_NF, of_up_NF = gradient_NO.chunk(2, dim=-1)
        torch.mul(of_inner_NF, active_NF, out=of_up_NF)
        torch.ops.aten.silu_backward.grad_input(of_inner_NF.mul_(up_NF), gate_NF, grad_input=of_gate_NF)
        of_both_OC, of_down_CF = gradient_NO.mT @ x_NC, gradient_NC.mT @ inner_NF
        return (gradient_NO @ both_OC).view_as(outer[0]), *whole(of_both_OC).chunk(2), whole(of_down_CF)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
        normed, scale = _normed(x, epsilon)
        ctx.save_for_backward(normed, scale, weight_C)
        return _halved(normed * weight_C)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Gradients:
        normed, scale, weight_C = ctx.saved_tensors
        gradient = whole(outer[0])
        product = gradient * normed
        along = (product @ weight_C).div_(weight_C.numel()).unsqueeze(-1)  # what only changes a vector's length
        of_x = (gradient * weight_C).addcmul_(normed, along, value=-1.0).mul_(scale)
        return of_x, product.reshape(-1, weight_C.numel()).sum(0), None


class _NormAndRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTGD: Tensor, weight_GD: Tensor, epsilon: float, turns_TGD: Tensor) -> Tensor:
        normed_BTGD, scale = _normed(whole(x_BTGD), epsilon)
        ctx.save_for_backward(normed_BTGD, scale, weight_GD, turns_TGD)
        turned_BTGD = _turned(normed_BTGD * weight_GD, turns_TGD)
        return turned_BTGD.transpose(1, 2).to(x_BTGD.dtype, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Gradients:
        normed_BTGD, scale, weight_GD, turns_TGD = ctx.saved_tensors
        outer_BTGD = outer[0].transpose(1, 2).to(normed_BTGD.dtype, memory_format=torch.contiguous_format)
        gradient = _turned(outer_BTGD, turns_TGD.conj())
        product = gradient * normed_BTGD
        of_weight_GD = product.sum((0, 1))
        along = product.mul_(weight_GD).sum(-1, keepdim=True).div_(weight_GD.shape[-1])
        return gradient.mul_(weight_GD).addcmul_(normed_BTGD, along, value=-1.0).mul_(scale), of_weight_GD, None, None


def _normed(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    scale = squares.div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return x * scale, scale


def _turned(x_BTGD: Tensor, turns_TGD: Tensor) -> Tensor:
    pairs_BTGD = torch.view_as_complex(x_BTGD.view(*x_BTGD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs_BTGD * turns_TGD).flatten(-2)


class _Attention(torch.autograd.Function):
    """Scores all positions with all others: twice what is needed, and still half of the time."""

    @staticmethod
    def forward(ctx: Any, query_BHTD: Tensor, key_BHTD: Tensor, value_BHTD: Tensor) -> Tensor:
        ctx.scale = query_BHTD.shape[-1] ** -0.5
        query, key, value = (query_BHTD * ctx.scale).flatten(0, 1), key_BHTD.flatten(0, 1), value_BHTD.flatten(0, 1)
        scores = torch.baddbmm(_later_positions(query.shape[1], query.dtype), query, key.mT)
        shares = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(query, key, value, shares)
        return (shares @ value).view_as(query_BHTD)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Gradients:
        query, key, value, shares = ctx.saved_tensors
        gradient = outer[0].flatten(0, 1)
        of_scores = torch._softmax_backward_data(gradient @ value.mT, shares, -1, shares.dtype)
        gradients = (of_scores @ key).mul_(ctx.scale), of_scores.mT @ query, shares.mT @ gradient
        return tuple(each.view_as(outer[0]) for each in gradients)


@functools.lru_cache(maxsize=4)
def _later_positions(length: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that no position looks at later ones."""
    with torch.inference_mode(False):
        return torch.full((length, length), float("-inf"), dtype=dtype).triu(1)
