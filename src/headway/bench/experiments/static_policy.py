"""Static batching, as a policy: what was there before continuous batching, to compare with.

headway serve --scheduling-policy headway.bench.experiments.static_policy:StaticBatchingPolicy
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headway.core.policy import CachedTokens, FCFSPolicy
from headway.core.request import Request

__all__ = ["StaticBatchingPolicy"]


class StaticBatchingPolicy(FCFSPolicy):
    """When a batch has ended, those who wait are the next, by arrival; nobody else is admitted
    until all of it have ended. It is admitted over several steps where its prompts exceed the
    budget of one.

    Args:
        batch_size: most requests of a batch. Where `max_num_seqs` is lower, the rest of a batch
            would take the places of those that end: then this is not static.
    """

    def __init__(self, batch_size: int = 128) -> None:
        super().__init__()
        self._batch_size = batch_size
        self._num_running = 0
        self._batch: set[Request] = set()

    def add(self, request: Request, now: float, cached: CachedTokens) -> None:
        if request.first_scheduled_s is not None:  # it was preempted, and stays in the batch
            self._num_running -= 1
        super().add(request, now, cached)

    def order(self, now: float, cached: CachedTokens) -> Iterator[Request]:
        waiting = super().order(now, cached)
        if not self._num_running and next(iter(self), None) not in self._batch:
            self._batch = set(islice(self, self._batch_size))
        return (request for request in waiting if request in self._batch)

    def admitted(self, request: Request, now: float) -> None:  # noqa: ARG002
        self._num_running += 1

    def ended(self, request: Request) -> None:  # noqa: ARG002
        self._num_running -= 1
