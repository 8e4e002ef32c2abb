"""What a precision costs: the arithmetic, on answers that are made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headway.bench.quality import Scores, compare, score, windows
from headway.core.plan import TokenLogprobs
from headway.engine.outputs import NewRequest, OutputDelta
from headway.errors import HeadwayError


class Letters:
    """A token is a letter's code; a text begins with `start`."""

    def __init__(self, *start: int) -> None:
        self._start = list(start)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._start * add_special_tokens + list(text.encode())


class Foretelling:
    """An engine that gives some rows a step, of all requests in turn: the log-probability of a
    token is minus itself, and the likeliest one the token before it."""

    def __init__(self, error: str | None = None) -> None:
        self.added: list[NewRequest] = []
        self._left: list[Any] = []
        self._error = error

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def add(self, new: Sequence[NewRequest]) -> None:
        self.added += new
        longest = max(len(request.prompt_token_ids) for request in new)
        self._left = [
            (request.request_id, *request.prompt_token_ids[at - 1 : at + 1])
            for at in range(1, longest)
            for request in new
            if at < len(request.prompt_token_ids)
        ]

    def step(self) -> list[OutputDelta]:
        some, self._left = self._left[:3], self._left[3:]
        return [
            OutputDelta(name, "", (), prompt_logprobs=(row,), error=self._error)
            for name, before, token in some
            for row in [TokenLogprobs(token, -float(token), 2, ((before, -0.5),))]
        ]


def scores(logprobs: Sequence[float], likeliest: Sequence[int] | None = None) -> Scores:
    return Scores(np.array(logprobs), np.array(likeliest or [0] * len(logprobs)))


def test_windows_begin_as_the_model_wants_a_text_to_begin() -> None:
    plain: Any = Letters()
    assert windows(plain, "abcdefg", 3) == [[97, 98, 99], [100, 101, 102]]
    begun: Any = Letters(1)
    assert windows(begun, "abcd", 3) == [[1, 97, 98, 99], [1, 100]]
    assert windows(plain, "a", 3) == windows(begun, "", 3) == []


def test_scores_are_in_the_order_of_the_text_whatever_the_engine_does_first() -> None:
    engine = Foretelling()
    found = score(engine, [[9, 1, 2, 3], [8, 4], [7, 5, 6]])
    assert found.logprobs.tolist() == [-1, -2, -3, -4, -5, -6]
    assert found.likeliest.tolist() == [9, 1, 2, 8, 7, 5]
    assert {request.params.prompt_logprobs for request in engine.added} == {1}
    assert {request.params.max_tokens for request in engine.added} == {0}


def test_a_window_that_fails_fails_the_comparison() -> None:
    with pytest.raises(HeadwayError, match="window 0: no more"):
        score(Foretelling(error="no more"), [[1, 2]])


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    assert scores([-math.log(2), -math.log(8)]).perplexity == pytest.approx(4)


def test_a_change_is_relative_and_knows_its_error() -> None:
    rng = np.random.default_rng(1)
    better = rng.normal(-3, 2, 40_000)
    worse = better - math.log(1.01) + rng.normal(0, 0.1, 40_000)
    found = compare(scores(worse), scores(better))
    assert found.num_tokens == 40_000
    assert found.change == pytest.approx(found.perplexity / scores(better).perplexity - 1)
    assert found.change_error == pytest.approx(1.01 * 0.1 / 200, rel=0.03)
    assert abs(found.change - 0.01) < 4 * found.change_error
    same = compare(scores(better), scores(better))
    assert (same.change, same.change_error, same.agreement) == (0, 0, 1)


def test_agreement_is_the_share_of_equal_likeliest_tokens() -> None:
    found = compare(scores([-1] * 4, [1, 2, 3, 4]), scores([-1] * 4, [1, 2, 9, 4]))
    assert found.agreement == 0.75
