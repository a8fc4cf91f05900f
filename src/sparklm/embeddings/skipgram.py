"""Skip-gram with negative sampling, as matrix products: the arithmetic of Word2Vec, for one chunk of tokens.

Word2Vec takes one pair of words at a time. Here the kept tokens are cut into blocks of B neighbours; one product makes
the scores of a block's centres with all tokens around them and with K noise tokens that the block shares, a table of
masks says which scores are pairs within the window, and two more products give the gradients in closed form. Some
blocks together are one update. What is learned is the same in expectation; noise tokens weigh so much that each pair
has `negatives` of them.

Guarantees: a pure function of the tables, the tokens and the seed; the same bits whenever one thread does it.
Costs: on one core 2 to 3 µs per kept token of size 100; memory is two tables of V × D floats.

Shapes: V vocabulary, D vector size, N blocks in an update, B centres in a block, C = B + 2 · window contexts of a
block, K noise tokens of a block, O = C + K outputs of a block, T kept tokens of a chunk, U blocks of a chunk, M rows of
masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.config import Word2VecConfig
from sparklm.text.windows import Int64Array

_BLOCK = 32  # B at most
_NOISE = 64  # K
_MOST_BLOCKS = 8  # N at most
_MOST_CROWDING = 0.35  # see `_centres_per_update`
_NOISE_EXPONENT = 0.75  # noise tokens are drawn with frequencies to this power, as in the original
_NOISE_DRAWS = 1 << 20  # entries of the table that noise tokens are drawn from


class Word2VecSettings(Word2VecConfig):
    """What decides the vectors. None of it depends on where the work is done."""

    size: int = 100
    seed: int = 1


@dataclass(frozen=True)
class Tables:
    """The vectors of tokens as centres and as contexts; training changes them in place."""

    input_VD: Tensor
    output_VD: Tensor

    @classmethod
    def initial(cls, vocab_size: int, size: int, seed: int) -> Tables:
        """Small random inputs and outputs of zero, as Word2Vec begins."""
        random = _generator(seed)
        input_VD = (torch.rand(vocab_size, size, generator=random) - 0.5) / size
        return cls(input_VD, torch.zeros(vocab_size, size))


@dataclass(frozen=True)
class Sampling:
    """What the counts of tokens decide: how often each is kept, what noise is drawn, how large an update may be."""

    keep_V: Tensor
    noise: Tensor
    block: int
    blocks_per_update: int
    end_of_text: int

    @classmethod
    def from_counts(
        cls, counts_V: Int64Array, end_of_text: int, settings: Word2VecSettings, highest_rate: float
    ) -> Sampling:
        """Derive everything from the counts; tokens that are not trained are never kept and never noise."""
        trained_V = trained_tokens(counts_V, end_of_text, settings)
        counts = np.where(trained_V, counts_V, 0).astype(np.float64)
        keep_V = np.where(trained_V, _keep_probability(counts / counts.sum(), settings.subsample), 0.0)
        centres = _centres_per_update(counts, settings, highest_rate)
        block = min(_BLOCK, 1 << (centres.bit_length() - 1))
        return cls(
            keep_V=torch.from_numpy(keep_V.astype(np.float32)),
            noise=torch.from_numpy(_noise_table(counts)),
            block=block,
            blocks_per_update=min(_MOST_BLOCKS, centres // block),
            end_of_text=end_of_text,
        )


def trained_tokens(counts_V: Int64Array, end_of_text: int, settings: Word2VecSettings) -> npt.NDArray[np.bool_]:
    """Which tokens get a vector of their own: those that are frequent enough, and not the end of text."""
    trained_V = counts_V >= settings.min_count
    trained_V[end_of_text] = False
    return trained_V


def train_chunk(
    tables: Tables, tokens: Int64Array, sampling: Sampling, settings: Word2VecSettings, learning_rate: float, seed: int
) -> None:
    """Learn from consecutive tokens, in place. Contexts do not reach beyond them or over an end of text."""
    random = _generator(seed)
    tokens_T, document_T = _thin_out(torch.from_numpy(tokens), sampling, random)
    if len(tokens_T) == 0:
        return
    window, block = settings.window, sampling.block
    num_blocks = -(-len(tokens_T) // (block * sampling.blocks_per_update)) * sampling.blocks_per_update
    missing = num_blocks * block - len(tokens_T)
    centres_UB = F.pad(tokens_T, (0, missing)).view(num_blocks, block)
    contexts_UC = F.pad(tokens_T, (window, window + missing)).unfold(0, block + 2 * window, block)
    outputs_UO = torch.cat([contexts_UC, _draw_noise(sampling.noise, num_blocks, random)], dim=1)
    masks_UB = F.pad(_choose_masks(document_T, block, window, random), (0, missing)).view(num_blocks, block)
    weights_MO = _weights(settings, block) * -learning_rate
    for first in range(0, num_blocks, sampling.blocks_per_update):
        blocks = slice(first, first + sampling.blocks_per_update)
        _update(tables, centres_UB[blocks], outputs_UO[blocks], masks_UB[blocks], weights_MO)


def _update(tables: Tables, centres_NB: Tensor, outputs_NO: Tensor, masks_NB: Tensor, weights_MO: Tensor) -> None:
    """Take one step of gradient descent on some blocks.

    The loss of a pair is -log σ(score), that of a noise token -log σ(-score): their slopes are σ - 1 and σ. Padding has
    weight 0, and so has everything in a centre's row of scores that is outside its window.
    """
    (num_blocks, block), size = centres_NB.shape, tables.input_VD.shape[1]
    centres, outputs = centres_NB.reshape(-1), outputs_NO.reshape(-1)
    input_NBD = tables.input_VD.index_select(0, centres).view(num_blocks, block, size)
    output_NOD = tables.output_VD.index_select(0, outputs).view(num_blocks, -1, size)
    step_NBO = torch.bmm(input_NBD, output_NOD.transpose(1, 2)).sigmoid_()
    step_NBO[:, :, :-_NOISE].sub_(1)
    step_NBO.mul_(weights_MO.index_select(0, masks_NB.reshape(-1)).view_as(step_NBO))
    input_step = torch.bmm(step_NBO, output_NOD).view(-1, size)
    output_step = torch.bmm(step_NBO.transpose(1, 2), input_NBD).view(-1, size)
    # On one core this takes 43 ns a row, index_add_ 104 ns; both add in a fixed order.
    tables.input_VD.scatter_add_(0, centres[:, None].expand_as(input_step), input_step)
    tables.output_VD.scatter_add_(0, outputs[:, None].expand_as(output_step), output_step)


def _thin_out(tokens: Tensor, sampling: Sampling, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The tokens that are left when some are dropped at random, frequent ones more often; their documents' numbers."""
    keep = torch.rand(len(tokens), generator=random) < sampling.keep_V[tokens]
    document = torch.cumsum(tokens == sampling.end_of_text, 0)
    return tokens[keep], document[keep]


def _choose_masks(document_T: Tensor, block: int, window: int, random: torch.Generator) -> Tensor:
    """The row of `_weights` for each centre's window, which is drawn at random and cut at its document's ends."""
    place_T = torch.arange(len(document_T))
    first_T = torch.searchsorted(document_T, document_T)
    last_T = torch.searchsorted(document_T, document_T, right=True) - 1
    reach_T = torch.randint(1, window + 1, place_T.shape, generator=random)
    before_T, after_T = torch.minimum(reach_T, place_T - first_T), torch.minimum(reach_T, last_T - place_T)
    return (place_T % block * (window + 1) + before_T) * (window + 1) + after_T


def _weights(settings: Word2VecSettings, block: int) -> Tensor:
    """The weights of a centre's scores for every place in the block and every reach before and after it.

    Row (place, before, after) of B · (window + 1)² = M rows has 1 for each context within reach, and for each noise
    token as much as makes `negatives` for each of these contexts.
    """
    window, reaches = settings.window, torch.arange(settings.window + 1)
    distance_BC = torch.arange(block + 2 * window) - window - torch.arange(block)[:, None]
    reached = (
        (distance_BC[:, None, None] >= -reaches[:, None, None])
        & (distance_BC[:, None, None] <= reaches[:, None])
        & (distance_BC[:, None, None] != 0)
    ).float()
    noise = (reaches[:, None] + reaches) * (settings.negatives / _NOISE)
    noise = noise[None, :, :, None].expand(block, -1, -1, _NOISE)
    return torch.cat([reached, noise], dim=3).flatten(0, 2)


def _draw_noise(noise: Tensor, num_blocks: int, random: torch.Generator) -> Tensor:
    """Each block's noise tokens, one from each of K equal bands of frequency, which evens out the draws."""
    band = len(noise) // _NOISE
    draws_UK = torch.randint(0, band, (num_blocks, _NOISE), generator=random) + torch.arange(_NOISE) * band
    return noise[draws_UK]


def _keep_probability(frequency: npt.NDArray[np.float64], subsample: float) -> npt.NDArray[np.float64]:
    """Word2Vec's chance of staying for each frequency."""
    if subsample == 0:
        return np.ones_like(frequency)
    ratio = subsample / np.maximum(frequency, 1e-300)
    return np.minimum(1.0, np.sqrt(ratio) + ratio)


def _centres_per_update(counts: npt.NDArray[np.float64], settings: Word2VecSettings, highest_rate: float) -> int:
    """How many centres may learn from the same tables.

    Their steps add up where they change the same rows of outputs: the more, the fewer tokens make up most of the text.
    Crowding is the rate times the steps that an average noise token's row gets in one update. Vectors exploded at 0.8
    (bytes) and at 1.1 (words), and did not at 0.4 and 0.6.
    """
    shares = counts**_NOISE_EXPONENT / (counts**_NOISE_EXPONENT).sum()
    steps_of_a_centre = (settings.window + 1) * settings.negatives * float((shares**2).sum())
    return max(1, min(_BLOCK * _MOST_BLOCKS, int(_MOST_CROWDING / (highest_rate * steps_of_a_centre))))


def _noise_table(counts: npt.NDArray[np.float64]) -> Int64Array:
    """Tokens, frequent ones first, each as often as its share of the noise."""
    order = np.argsort(-counts, kind="stable")
    shares = np.cumsum(counts[order] ** _NOISE_EXPONENT)
    ends = np.rint(shares / shares[-1] * _NOISE_DRAWS).astype(np.int64)
    return np.repeat(order, np.diff(ends, prepend=0))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % (1 << 63))
