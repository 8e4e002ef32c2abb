"""Drafts by prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headway.core.params import SamplingParams
from headway.core.request import Request
from headway.engine.ngram import NgramProposer


def request(tokens: Sequence[int], name: str = "r") -> Request:
    return Request(name, tokens, SamplingParams(), arrival_s=0)


def propose(tokens: Sequence[int], count: int = 3, *, low: int = 2, high: int = 4) -> list[int]:
    proposer = NgramProposer(min_ngram=low, max_ngram=high)
    return list(proposer.propose([(request(tokens), count)]).get("r", ()))


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 1, 2]) == [3, 4, 5]


def test_fewer_equal_tokens_than_the_least_are_no_match() -> None:
    assert propose([1, 2, 3, 4, 5, 2]) == []
    assert propose([1, 2, 3, 4, 5, 2], low=1) == [3, 4, 5]


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    longest_first = [7, 1, 2, 5, 5, 5, 9, 1, 2, 6, 6, 6, 7, 1, 2]
    assert propose(longest_first) == [5, 5, 5]
    equal = [1, 2, 5, 5, 5, 1, 2, 6, 6, 6, 1, 2]
    assert propose(equal) == [6, 6, 6]
    assert propose(longest_first, high=2) == [6, 6, 6]


def test_what_repeats_up_to_the_end_goes_on_repeating() -> None:
    assert propose([9, 1, 2, 1, 2], count=5) == [1, 2, 1, 2, 1]
    assert propose([4, 4, 4], count=4) == [4, 4, 4, 4]


def test_a_short_or_new_text_gives_none() -> None:
    for tokens in ([1], [1, 2], [1, 2, 3, 4]):
        assert propose(tokens) == []


def test_output_counts_as_it_comes() -> None:
    proposer, item = NgramProposer(min_ngram=2, max_ngram=4), request([1, 2])
    for token, expected in ((3, None), (1, None), (2, (3, 1)), (3, (1, 2)), (9, None)):
        item.token_ids.append(token)
        assert proposer.propose([(item, 2)]).get("r") == expected


def test_an_id_that_is_used_again_is_another_request() -> None:
    proposer = NgramProposer(min_ngram=2, max_ngram=4)
    assert proposer.propose([(request([1, 2, 3, 1, 2]), 1)]) == {"r": (3,)}
    assert proposer.propose([(request([1, 2, 4, 1, 2]), 1)]) == {"r": (4,)}


def _slow(tokens: list[int], low: int, high: int, count: int) -> list[int]:
    """The definition: the longest suffix found earlier, at its latest place."""
    for length in range(min(high, len(tokens) - 1), low - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                going_on = list(tokens)
                while len(going_on) < len(tokens) + count:
                    going_on.append(going_on[len(going_on) - len(tokens) + end])
                return going_on[len(tokens) :]
    return []


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 3))
def test_it_is_what_a_plain_search_finds(tokens: list[int], low: int, more: int) -> None:
    found = propose(tokens, 4, low=low, high=low + more)
    if low > 1 or len(tokens) <= 16:  # of one token there may be more places than are looked at
        assert found == _slow(tokens, low, low + more, 4)
