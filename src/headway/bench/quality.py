"""`headway bench quality`: what a precision costs, in perplexity and in greedy tokens.

A text is cut into windows, in which a model foretells each token from those before it. Two
precisions see the same tokens, so the mean difference of their log-probabilities is known far
better than either perplexity is; its standard error goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from headway.bench.offline import Steps
from headway.core.params import SamplingParams
from headway.core.plan import TokenLogprobs
from headway.engine.outputs import NewRequest
from headway.errors import HeadwayError
from headway.text.tokenizer import Tokenizer

__all__ = ["Difference", "Scores", "compare", "score", "windows"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model made of the tokens of a text, in order."""

    logprobs: npt.NDArray[np.float64]
    """[tokens] Of each token, after those before it in its window."""
    likeliest: npt.NDArray[np.int64]
    """[tokens] The token that was the likeliest in its place."""

    @property
    def perplexity(self) -> float:
        return math.exp(-float(self.logprobs.mean()))


@dataclass(frozen=True, slots=True)
class Difference:
    """A precision beside a better one, on the same tokens."""

    num_tokens: int
    perplexity: float
    change: float
    """Of the perplexity, relative to the better one's: 0.01 is 1 % worse."""
    change_error: float
    """Its standard error, tokens taken as independent."""
    agreement: float
    """Share of the places where the likeliest token is the same."""


def windows(tokenizer: Tokenizer, text: str, length: int) -> list[list[int]]:
    """The text's tokens, `length` at a time, each beginning as the model wants a text to begin.

    A last piece of a single token is left out. Raises `InvalidRequest` as `Tokenizer.encode`.
    """
    start = tokenizer.encode("")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = [[*start, *tokens[at : at + length]] for at in range(0, len(tokens), length)]
    return [piece for piece in pieces if len(piece) > 1]


def score(engine: Steps, pieces: Iterable[Sequence[int]]) -> Scores:
    """Of a text's windows; `engine` runs nothing else. Raises `HeadwayError` if it fails."""
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=1)
    requests = [NewRequest(str(i), list(piece), params) for i, piece in enumerate(pieces)]
    found: dict[str, list[TokenLogprobs]] = {request.request_id: [] for request in requests}
    engine.add(requests)
    while engine.has_work:
        for delta in engine.step():
            if delta.error is not None:
                raise HeadwayError(f"window {delta.request_id}: {delta.error}")
            found[delta.request_id] += delta.prompt_logprobs
    entries = list(chain.from_iterable(found.values()))
    return Scores(
        np.array([entry.logprob for entry in entries]),
        np.array([entry.top[0][0] for entry in entries]),
    )


def compare(scores: Scores, better: Scores) -> Difference:
    """What `scores` lose against `better`, of the same tokens."""
    lost = better.logprobs - scores.logprobs
    ratio = math.exp(float(lost.mean()))
    return Difference(
        num_tokens=len(lost),
        perplexity=scores.perplexity,
        change=ratio - 1,
        change_error=ratio * float(lost.std(ddof=1)) / math.sqrt(len(lost)),
        agreement=float((scores.likeliest == better.likeliest).mean()),
    )
