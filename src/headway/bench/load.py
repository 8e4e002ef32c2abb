"""Sends the requests of a workload when they are due, and keeps what became of each."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from headway.workload import WorkItem, Workload

__all__ = ["Outcome", "Run", "run_load"]


@dataclass(slots=True)
class Outcome:
    """A request and what came of it. Moments are seconds on the event loop's clock."""

    item: WorkItem
    arrival_s: float
    """When the workload has it arrive."""
    due_s: float = 0.0
    """When it was to be sent: at its arrival, or when a place came free, if it waited for one."""
    sent_s: float = 0.0
    chunk_times_s: list[float] = field(default_factory=list)
    """When each chunk with a token, or several, came."""
    texts: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    """As the server counts; None: it did not say."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its prefix cache."""
    error: str | None = None
    """Why there is no whole answer."""

    @property
    def output_len(self) -> int:
        """Tokens: as the server counts, else one for each chunk."""
        return self.completion_tokens or len(self.chunk_times_s)

    @property
    def ttft_s(self) -> float:
        """From sending, connecting included, to the first token."""
        return self.chunk_times_s[0] - self.sent_s

    @property
    def e2el_s(self) -> float:
        """From sending to the last token."""
        return self.chunk_times_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Per token after the first; None where there are none."""
        more = self.output_len - 1
        return (self.e2el_s - self.ttft_s) / more if more > 0 else None

    @property
    def itls_s(self) -> list[float]:
        """Between chunks, of which one may hold several tokens."""
        times = self.chunk_times_s
        return [times[i] - times[i - 1] for i in range(1, len(times))]


@dataclass(frozen=True, slots=True)
class Run:
    """A workload that was sent once."""

    start_s: float
    duration_s: float
    """Until the last answer was complete."""
    outcomes: list[Outcome]
    """By arrival."""


Send = Callable[[Outcome], Awaitable[None]]
"""Sends the request, sets `sent_s` and what comes of it; whatever the server does, it raises
nothing."""


async def run_load(
    workload: Workload,
    items: Sequence[WorkItem],
    send: Send,
    *,
    max_concurrency: int | None = None,
    progress: Callable[[], object] = lambda: None,
) -> Run:
    """Sends all `items` of the workload, each at its time.

    Args:
        workload: says what users a class has.
        items: in order of arrival.
        send: for one request.
        max_concurrency: requests under way at most; None: no limit. Users of a closed loop are
            limits of their class beside it.
        progress: called as each ends.
    """
    loop = asyncio.get_running_loop()
    users = {name: workload.users(name) for name in {item.class_name for item in items}}
    places = {name: _Places(count) for name, count in users.items() if count is not None}
    everybody = None if max_concurrency is None else _Places(max_concurrency)
    start = loop.time()
    outcomes = [Outcome(item, start + item.arrival_s) for item in items]

    async def one(outcome: Outcome) -> None:
        async with AsyncExitStack() as held:
            outcome.due_s = outcome.arrival_s
            for limit in (places.get(outcome.item.class_name), everybody):
                if limit is not None:
                    outcome.due_s = max(outcome.due_s, await limit.take())
                    held.callback(limit.give_back)
            await send(outcome)
        progress()

    async with asyncio.TaskGroup() as tasks:
        for outcome in outcomes:
            wait_s = outcome.arrival_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(one(outcome))
    return Run(start, loop.time() - start, outcomes)


class _Places:
    """A semaphore, first come first served, that says when a place came free."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = count
        self._waiting: deque[asyncio.Future[float]] = deque()

    async def take(self) -> float:
        """When the place came free; -inf where it was."""
        if self._free:
            self._free -= 1
            return -math.inf
        place: asyncio.Future[float] = self._loop.create_future()
        self._waiting.append(place)
        return await place

    def give_back(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.cancelled():
                place.set_result(self._loop.time())
                return
        self._free += 1
