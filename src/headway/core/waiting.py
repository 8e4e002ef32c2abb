"""The waiting requests, in the order in which the policy lets them go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from headway.core.request import Request

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """A list sorted by rank: the head is its last element, so taking it is O(1).

    Ranks are unique and fixed while a request waits, so one can be found again in O(log n).
    """

    def __init__(self, rank: Callable[[Request], tuple[int, ...]]) -> None:
        self._rank = rank
        self._requests: list[Request] = []

    def _key(self, request: Request) -> tuple[int, ...]:
        return tuple(-part for part in self._rank(request))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """From the head on."""
        return reversed(self._requests)

    @property
    def head(self) -> Request:
        return self._requests[-1]

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=self._key)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, self._key(request), key=self._key)
        assert self._requests[index] is request
        del self._requests[index]
