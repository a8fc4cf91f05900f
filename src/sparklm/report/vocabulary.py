"""The tokens of a run: how often each occurs in its text, and which the model holds to be alike.

Cost: at most 10 million tokens are read, a million at a time, and model.zip is loaded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sparklm.embeddings.nearest import nearest, unit_rows
from sparklm.errors import UserError
from sparklm.models.model_zip import load_model
from sparklm.report.charts import BLUE, PURPLE, Plot, chart_text, frame, row_axis, short
from sparklm.report.facts import WRITTEN_LAST, Missing, RunFacts, read_file
from sparklm.text.tokenizer import Tokenizer
from sparklm.training.run import MODEL

_MOST_TOKENS = 10_000_000
_MOST_BARS, _MOST_RANKS, _MOST_WORDS = 30, 400, 200
_FEW_WORDS = 20  # fewer make no neighbourhood
_NUM_NEIGHBOURS = 5
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """How often each token occurs in the first tokens of the training text."""

    tokenizer: Tokenizer
    counts: npt.NDArray[np.int64]
    num_counted: int
    num_tokens: int

    @property
    def ranked(self) -> list[int]:
        """The tokens that occur, the most frequent first."""
        order = np.argsort(-self.counts, kind="stable")
        ids: list[int] = order[: int((self.counts > 0).sum())].tolist()
        return ids

    def label(self, token: int) -> str:
        """A token as charts show it."""
        return chart_text(_visible(self.tokenizer.token_text(token)))


@lru_cache(maxsize=1)  # two sections of a page ask
def count_tokens(facts: RunFacts) -> TokenCounts | Missing:
    """Count the tokens of the run's training text."""
    if facts.dataset is None:
        return facts.missing["dataset"]
    dataset = facts.dataset
    try:
        return TokenCounts(
            tokenizer=dataset.tokenizer,
            counts=dataset.train.count_tokens(dataset.manifest.vocab_size, _MOST_TOKENS),
            num_counted=min(len(dataset.train), _MOST_TOKENS),
            num_tokens=len(dataset.train),
        )
    except UserError as error:
        return Missing(str(error))


def frequent_tokens(counted: TokenCounts) -> Plot:
    """Draw the most frequent tokens as bars."""
    top = counted.ranked[:_MOST_BARS]
    shares = [100.0 * int(counted.counts[token]) / counted.num_counted for token in top]
    names = [counted.label(token) for token in top]
    figure = frame("percent of the training tokens", "", hovermode="closest", showlegend=False, bargap=0.25)
    figure.add_bar(
        orientation="h",
        x=short(shares),
        y=list(range(len(top))),
        marker={"color": BLUE},
        customdata=[[name, int(counted.counts[token])] for name, token in zip(names, top, strict=True)],
        hovertemplate="%{customdata[0]}<br>%{customdata[1]:,} times, %{x:.3~g} %<extra></extra>",
    )
    row_axis(figure, names)
    return Plot(
        name="frequent-tokens",
        label=f"The {len(top)} most frequent tokens and their share of the training text",
        figure=figure,
        height=max(220, 110 + 18 * len(top)),
        caption=f"The {len(top)} most frequent of the {len(counted.ranked):,} tokens that occur. Together they are "
        f"{sum(shares):.3g} % of the {counted.num_counted:,} tokens counted.",
    )


def rank_frequency(counted: TokenCounts) -> Plot:
    """Draw frequency against rank, both on logarithmic scales; natural text comes near a straight line."""
    ranked = counted.ranked
    ranks = np.unique(np.geomspace(1, max(1, len(ranked)), _MOST_RANKS).astype(np.int64)).tolist()
    figure = frame("rank", "times", hovermode="closest", showlegend=False)
    figure.add_scatter(
        x=ranks,
        y=[int(counted.counts[ranked[rank - 1]]) for rank in ranks],
        mode="lines+markers",
        line={"color": PURPLE, "width": 1.5},
        marker={"color": PURPLE, "size": 4},
        customdata=[counted.label(ranked[rank - 1]) for rank in ranks],
        hovertemplate="%{customdata}<br>rank %{x:,}: %{y:,} times<extra></extra>",
    )
    figure.update_xaxes(type="log", dtick=1, tickformat=",d")
    figure.update_yaxes(type="log", dtick=1, tickformat=",d")
    return Plot(
        name="rank-frequency",
        label="Frequency of tokens by rank, on logarithmic scales",
        figure=figure,
        caption=f"{len(ranks):,} of the {len(ranked):,} tokens that occur, at even distances along the line. The "
        f"{len(counted.counts) - len(ranked):,} tokens of the vocabulary that do not occur have no place on it.",
    )


def neighbourhood(facts: RunFacts) -> Plot | Missing:
    """Draw the embeddings of frequent words in the plane of their two main directions."""
    counted = count_tokens(facts)
    if isinstance(counted, Missing):
        return counted
    trained = read_file(facts.run, MODEL, lambda: load_model(facts.run.address(MODEL)), WRITTEN_LAST)
    if isinstance(trained, Missing):
        return trained
    vectors = trained.model.token_embeddings.detach().numpy()
    words = readable_tokens(counted)
    if len(words) < 3:
        return Missing(f"the text has only {len(words)} tokens that are readable words")
    shown = unit_rows(vectors)[words]
    places = in_plane(shown)
    figure = frame("first main direction", "second main direction", hovermode="closest", showlegend=False)
    figure.add_scatter(
        x=short(places[:, 0].tolist()),
        y=short(places[:, 1].tolist()),
        mode="markers+text",
        text=[chart_text(counted.tokenizer.token_text(word).strip()) for word in words],
        textposition="top center",
        textfont={"size": 11},
        cliponaxis=False,
        marker={"color": BLUE, "size": 5, "opacity": 0.75},
        customdata=[
            [counted.label(word), int(counted.counts[word]), near]
            for word, near in zip(words, _neighbours(vectors, words, counted), strict=True)
        ],
        hovertemplate="<b>%{customdata[0]}</b>, %{customdata[1]:,} times<br>%{customdata[2]}<extra></extra>",
    )
    figure.update_layout(meta={"labels": "sparse"})  # page.js hides labels that would lie on others
    return Plot(
        name="neighbourhood",
        label=f"Embeddings of the {len(words)} most frequent words in two dimensions",
        figure=figure,
        height=620,
        caption=_what_the_plane_shows(shown, len(counted.ranked)),
    )


def _what_the_plane_shows(vectors: Vectors, num_tokens: int) -> str:
    """Say what may be read from the plane of some vectors, and what not."""
    words, dimensions = vectors.shape
    random = unit_rows(np.random.default_rng(0).normal(size=vectors.shape).astype(np.float32))
    return (
        f"{words:,} words, the most frequent ones of the {num_tokens:,} tokens that occur. Their vectors have "
        f"{dimensions} dimensions and are scaled to length one. The plane keeps {100 * share_in_plane(vectors):.0f} % "
        f"of their variance and hides the rest; of as many random vectors, the best plane keeps "
        f"{100 * share_in_plane(random):.0f} %, so a figure near that shows no order. Words that lie together here may "
        "be far apart in the model, and distances between groups mean little: the box of a point has its true "
        "neighbours. The axes have no meaning of their own."
    )


def readable_tokens(counted: TokenCounts) -> list[int]:
    """Choose the most frequent tokens that are words.

    A word has a space before it, where tokens have that at all; else it has two letters; and where there are hardly any
    of those either, single letters must do.
    """
    texts = {token: counted.tokenizer.token_text(token) for token in counted.ranked[: 20 * _MOST_WORDS]}
    letters = [token for token, text in texts.items() if text.strip().isalpha()]
    long = [token for token in letters if len(texts[token].strip()) > 1]
    spaced = [token for token in long if texts[token].startswith(" ")]
    chosen = next((tokens for tokens in (spaced, long) if len(tokens) >= _FEW_WORDS), letters)
    return chosen[:_MOST_WORDS]


def share_in_plane(vectors: Vectors) -> float:
    """How much of their variance vectors keep in the plane of `in_plane`, from 0 to 1."""
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False).astype(np.float64) ** 2
    return float(variances[:2].sum() / variances.sum()) if variances.any() else 1.0


def in_plane(vectors: Vectors) -> Vectors:
    """Project onto the two directions in which the vectors differ most (PCA), each turned so that its sign is fixed."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((2, vectors.shape[1]), dtype=np.float32)
    plane[: len(directions[:2])] = directions[:2]
    plane *= np.where(plane.sum(axis=1, keepdims=True) < 0, -1.0, 1.0).astype(np.float32)
    projected: Vectors = centred @ plane.T
    return projected


def _visible(text: str) -> str:
    """Show the spaces and line ends of a token, which would else not be seen.

    >>> _visible(" the"), _visible(chr(10))
    ('␣the', '⏎')
    """
    shown = text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")
    return "".join(letter if letter.isprintable() else f"U+{ord(letter):04X}" for letter in shown)


def _neighbours(vectors: Vectors, words: list[int], counted: TokenCounts) -> list[str]:
    """List, for each word, the tokens of the text whose vectors point most in its direction, with the cosines."""
    return [
        "<br>".join(f"{cosine:.3f}  {counted.label(token)}" for token, cosine in near)
        for near in nearest(vectors, words, _NUM_NEIGHBOURS, among=counted.ranked)
    ]
