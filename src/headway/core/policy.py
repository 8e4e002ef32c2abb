"""Who goes next and who gives way (rules S6, S13).

A policy owns the queue of the waiting requests, and nothing else of the scheduler. One of your
own is a subclass of `RankedPolicy` with a `rank`, or of `Policy` for more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from headway.core.request import Request

__all__ = ["FCFSPolicy", "Policy", "PriorityPolicy", "RankedPolicy", "SJFPolicy"]

CachedTokens = Callable[[Request], int]
"""How many of a request's tokens a lookup finds in the prefix cache now."""

_AGING_S = 30.0
_AGING_TOKENS_PER_S = 100.0


class Policy:
    """What the scheduler asks of a policy. Requests are unique, and `remove` gets only those
    that were added."""

    heeds_priority: ClassVar[bool] = False
    """Whether a request's `priority` means anything; where it does not, it is refused."""
    heeds_deadline: ClassVar[bool] = False
    """The same for its TTFT deadline."""
    charges: ClassVar[bool] = False
    """Whether `charge` is to be called."""

    def add(self, request: Request, now: float, cached: CachedTokens) -> None:
        """The request waits, for the first time or again."""
        raise NotImplementedError

    def remove(self, request: Request) -> None:
        """It waits no longer: it was admitted, or ended."""
        raise NotImplementedError

    def order(self, now: float, cached: CachedTokens) -> Iterator[Request]:
        """The waiting in the order in which they should be admitted, the head first.

        The request given last may be removed before the next one is asked for.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Request]:
        """The waiting, in any order."""
        raise NotImplementedError

    def admitted(self, request: Request, now: float) -> None:
        """The request was admitted and is about to be removed."""

    def ended(self, request: Request) -> None:
        """An admitted request ended."""

    def charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """The request was given service; negative: it was taken back."""

    def victim(self, running: Sequence[Request]) -> Request:
        """Which of these running requests, in order of admission, gives way (rule S6)."""
        return running[-1]

    def outranks(self, waiting: Request, running: Request) -> bool:  # noqa: ARG002
        """Whether the one may take the other's place (rule S12)."""
        return False


class RankedPolicy(Policy):
    """The smallest `rank` goes first; it is asked for once each time a request begins to wait.

    The queue is a list sorted by rank whose last element is the head, so taking it is O(1), and
    finding a request again is O(log n).
    """

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def rank(self, request: Request, now: float, cached_tokens: int) -> tuple[float, ...]:
        """Ties go to the earlier arrival.

        Args:
            request: the one that begins to wait.
            now: when the request begins to wait; for a preempted one, when it lost its place.
            cached_tokens: how many of its tokens the prefix cache has at that time.
        """
        raise NotImplementedError

    looks_up: ClassVar[bool] = False
    """Whether `rank` needs `cached_tokens`; else it is 0, and no lookup is made."""

    def add(self, request: Request, now: float, cached: CachedTokens) -> None:
        found = cached(request) if self.looks_up else 0
        rank = (*self.rank(request, now, found), request.sequence)
        request.rank = tuple(-part for part in rank)
        insort(self._queue, request, key=_rank)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._queue, request.rank, key=_rank)
        assert self._queue[index] is request
        del self._queue[index]

    def order(self, now: float, cached: CachedTokens) -> Iterator[Request]:  # noqa: ARG002
        index = len(self._queue)
        while index := min(index, len(self._queue)):
            index -= 1
            yield self._queue[index]

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return reversed(self._queue)


def _rank(request: Request) -> tuple[float, ...]:
    return request.rank


class FCFSPolicy(RankedPolicy):
    """First come, first served: a preempted request is before all that came after it."""

    def rank(self, request: Request, now: float, cached_tokens: int) -> tuple[float, ...]:  # noqa: ARG002
        return ()


class PriorityPolicy(RankedPolicy):
    """Lower `priority` is more urgent; ties go to the earlier arrival (rule S12).

    A request gains a level for every `aging_s` seconds since its arrival, continuously: so the
    order of two never changes, and nobody waits for ever behind a stream of urgent ones. With 0
    the order is strict.
    """

    heeds_priority: ClassVar[bool] = True

    def __init__(self, aging_s: float = _AGING_S) -> None:
        super().__init__()
        self._aging_s = aging_s

    def rank(self, request: Request, now: float, cached_tokens: int) -> tuple[float, ...]:  # noqa: ARG002
        if self._aging_s == 0:
            return (request.priority,)
        return (request.priority + request.arrival_s / self._aging_s,)

    def victim(self, running: Sequence[Request]) -> Request:
        return max(running, key=lambda request: (request.priority, request.sequence))

    def outranks(self, waiting: Request, running: Request) -> bool:
        """The waiting one counts unaged; the running one by the better of its priority and
        what that was, aged, when it was admitted."""
        return waiting.priority < self._level(running)

    def worst_first(self, running: Sequence[Request]) -> list[Request]:
        return sorted(running, key=lambda r: (self._level(r), r.sequence), reverse=True)

    def _level(self, running: Request) -> float:
        if self._aging_s == 0:
            return running.priority
        waited_s = running.admitted_s - running.arrival_s
        return running.priority - max(0.0, waited_s) / self._aging_s


class SJFPolicy(RankedPolicy):
    """Fewest uncomputed prompt tokens first, as of the arrival; a preempted request is before
    all that never ran.

    A second of waiting counts as `aging_tokens_per_s` tokens less, so a request of n tokens is
    behind none that arrives more than n / `aging_tokens_per_s` seconds after it.
    """

    looks_up: ClassVar[bool] = True

    def __init__(self, aging_tokens_per_s: float = _AGING_TOKENS_PER_S) -> None:
        super().__init__()
        self._aging = aging_tokens_per_s

    def rank(self, request: Request, now: float, cached_tokens: int) -> tuple[float, ...]:  # noqa: ARG002
        if request.first_scheduled_s is not None:
            return (0, 0)
        length = request.num_prompt_tokens - cached_tokens
        return (1, length + request.arrival_s * self._aging)
