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

_REFUSALS = ("HTTP 429", "HTTP 503")


@dataclass(slots=True)
class Outcome:
    """A request and what came of it. Moments are seconds on the event loop's clock."""

    item: WorkItem
    arrival_s: float
    """When the workload has it arrive; a later turn, its pause after the answer that it follows."""
    before: Outcome | None = None
    """Of the turn that it follows."""
    asked_len: int | None = None
    """Tokens that the prompt is to have; None: only the server can tell, as it holds an answer as
    text."""
    made_up: bool = False
    """A later turn whose prompt holds a made-up answer, as the server told no token ids."""
    due_s: float = 0.0
    """When it was to be sent: at its arrival, or when a place came free, if it waited for one."""
    sent_s: float = 0.0
    chunk_times_s: list[float] = field(default_factory=list)
    """When each chunk with a token, or several, came."""
    texts: list[str] = field(default_factory=list)
    said: str = ""
    """The text without thoughts: what a conversation goes on from."""
    prompt_tokens: int | None = None
    """As the server counts; None: it did not say."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its prefix cache."""
    answer_ids: list[int] = field(default_factory=list)
    """The answer's tokens, where the server was asked for them and tells."""
    error: str | None = None
    """Why there is no whole answer."""
    unsent: bool = False
    """A later turn that was given up, as one before it failed."""
    ended_s: float = 0.0
    """When the answer was complete, or failed."""

    @property
    def refused(self) -> bool:
        """The server would not have it: too many requests, or no place in time."""
        return self.error is not None and self.error.startswith(_REFUSALS)

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
    """Sends all `items` of the workload, each at its time; a later turn when it is due after the
    answer before. If that failed, the rest of the conversation fails too.

    Args:
        workload: says what users a class has.
        items: in order of arrival; all that a turn follows are there.
        send: for one request.
        max_concurrency: requests under way at most; None: no limit. Users of a closed loop are
            limits of their class beside it.
        progress: called as each ends.
    """
    sender = _Sender(workload, items, send, max_concurrency, progress)
    loop = asyncio.get_running_loop()
    start = loop.time()
    outcomes = [Outcome(item, start + item.arrival_s, asked_len=item.input_len) for item in items]
    async with asyncio.TaskGroup() as tasks:
        for conversation in _conversations(outcomes):
            wait_s = conversation[0].arrival_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(sender.converse(conversation))
    return Run(start, loop.time() - start, outcomes)


def _conversations(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Each with its turns in order, by when they begin; what follows nothing is one by itself."""
    conversations: list[list[Outcome]] = []
    of: list[list[Outcome]] = []
    for outcome in outcomes:
        follows = outcome.item.follows
        if follows is None:
            conversations.append([])
            of.append(conversations[-1])
        else:
            outcome.before = outcomes[follows]
            assert of[follows][-1] is outcome.before, "two turns follow the same"
            of.append(of[follows])
        of[-1].append(outcome)
    return conversations


class _Sender:
    """Sends conversations within the limits of their class and of all."""

    def __init__(
        self,
        workload: Workload,
        items: Sequence[WorkItem],
        send: Send,
        max_concurrency: int | None,
        progress: Callable[[], object],
    ) -> None:
        users = {name: workload.users(name) for name in {item.class_name for item in items}}
        self._places = {name: _Places(count) for name, count in users.items() if count is not None}
        self._everybody = None if max_concurrency is None else _Places(max_concurrency)
        self._send, self._progress = send, progress
        self._loop = asyncio.get_running_loop()

    async def converse(self, turns: Sequence[Outcome]) -> None:
        """A user of a closed loop has his place until the last answer, also as he pauses."""
        async with AsyncExitStack() as held:
            free_s = await _take(self._places.get(turns[0].item.class_name), held)
            for index, outcome in enumerate(turns):
                if index:
                    outcome.arrival_s = self._loop.time() + outcome.item.pause_s
                    await asyncio.sleep(outcome.item.pause_s)
                await self._one(outcome, free_s)
                if outcome.error is not None:
                    self._give_up(turns[index + 1 :])
                    return

    async def _one(self, outcome: Outcome, free_s: float) -> None:
        async with AsyncExitStack() as held:
            anywhere_s = await _take(self._everybody, held)
            outcome.due_s = max(outcome.arrival_s, free_s, anywhere_s)
            await self._send(outcome)
            outcome.ended_s = self._loop.time()
        self._progress()

    def _give_up(self, rest: Sequence[Outcome]) -> None:
        for outcome in rest:
            outcome.error, outcome.unsent = "not sent: a turn before it failed", True
            outcome.arrival_s = outcome.due_s = outcome.sent_s = self._loop.time()
            outcome.ended_s = outcome.sent_s
            self._progress()


async def _take(places: _Places | None, held: AsyncExitStack) -> float:
    """When the place came free that is held until `held` ends; -inf where none was waited for."""
    if places is None:
        return -math.inf
    free_s = await places.take()
    held.callback(places.give_back)
    return free_s


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
