"""Drafts from the request's own text: what followed its last tokens when they came before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headway.core.request import Request

__all__ = ["NgramProposer"]

_MOST_CANDIDATES = 16
"""Earlier places that are looked at for one draft."""


class NgramProposer:
    """Implements `Proposer` by prompt lookup (as in vLLM: `prompt_lookup_min` and `_max`).

    The last tokens of prompt and output, as many as were there before, at least `min_ngram` and at
    most `max_ngram`, are looked for among the last places where `min_ngram` of them occur; of
    equally good places the latest counts. What repeats up to the end is taken to go on repeating.
    """

    def __init__(self, *, min_ngram: int, max_ngram: int) -> None:
        assert 1 <= min_ngram <= max_ngram
        self._min = min_ngram
        self._max = max_ngram
        self._indices: dict[str, _Index] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        """Costs O(new tokens) for each request, once its index is made."""
        if len(self._indices) > 2 * len(wanted):
            self._indices = {
                name: index for name, index in self._indices.items() if not index.request.finished
            }
        drafts = {}
        for request, count in wanted:
            index = self._indices.get(request.request_id)
            if index is None or index.request is not request:
                index = self._indices[request.request_id] = _Index(request, self._min)
            index.catch_up()
            if end := index.find(self._max):
                drafts[request.request_id] = _continuation(request.token_ids, end, count)
        return drafts


class _Index:
    """Where each n-gram of a request's tokens ended last, and where before that."""

    def __init__(self, request: Request, length: int) -> None:
        self.request = request
        self._length = length
        self._latest: dict[tuple[int, ...], int] = {}
        """N-gram → position after it, the latest that another token follows."""
        self._before = array("l", [0] * length)
        """Position after an n-gram → the one before of the same n-gram; 0: there is none."""

    def catch_up(self) -> None:
        """Takes the n-grams that came to be followed by a token since the last call."""
        tokens, length, latest, before = (
            self.request.token_ids,
            self._length,
            self._latest,
            self._before,
        )
        for end in range(len(before), len(tokens)):
            ngram = tuple(tokens[end - length : end])
            before.append(latest.get(ngram, 0))
            latest[ngram] = end

    def find(self, most: int) -> int:
        """Position after the best match for the last tokens, of up to `most` tokens; 0: none."""
        tokens, count = self.request.token_ids, len(self.request.token_ids)
        end = self._latest.get(tuple(tokens[-self._length :]), 0)
        best, longest = 0, 0
        for _ in range(_MOST_CANDIDATES):
            if not end or longest == most:
                break
            length = self._length
            while (
                length < min(most, end) and tokens[end - length - 1] == tokens[count - length - 1]
            ):
                length += 1
            if length > longest:
                best, longest = end, length
            end = self._before[end]
        return best


def _continuation(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """The tokens from `start` on; past the last one those from `start` on come again."""
    period = len(tokens) - start
    return tuple(tokens[start + i % period] for i in range(count))
