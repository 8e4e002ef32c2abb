"""One engine's process as the server's event loop sees it: messages, until it is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from headway.clock import Clock
from headway.errors import EngineDead
from headway.server.process.launch import EngineProcess
from headway.server.process.messages import (
    Done,
    Ended,
    Failed,
    Frames,
    FromEngine,
    Heartbeat,
    Progress,
    Ready,
    Refused,
    Stepped,
    ToEngine,
    decode_from_engine,
    pack,
)
from headway.server.process.watchdog import LOADING_SILENCE_S, SILENCE_S, Watchdog

__all__ = ["EngineLink"]

_CHECK_S = 0.25
"""Between two looks at the watchdog."""
_DUMP_S = 0.2
"""For a hung engine to say where it hangs, before it is killed."""


class EngineLink(asyncio.Protocol):
    """Once it is lost it stays so, and the process is killed. For the event loop it is made in.

    Attributes:
        ready: the engine's `Ready`, or what it failed with.
        lost: why nothing more comes. Set once.

    Args:
        process: ours from here on.
        stepped: gets what the steps come to, in order.
        progress: is told what is being done before it is ready.
        step_timeout_s: see `Watchdog`.
        gone: what those get who wait for it when it is lost, and who come later.
    """

    def __init__(
        self,
        process: EngineProcess,
        *,
        stepped: Callable[[Stepped], None],
        progress: Callable[[str], None],
        clock: Clock,
        step_timeout_s: float,
        gone: Callable[[], EngineDead],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.ready.add_done_callback(_retrieved)
        self.lost: asyncio.Future[str] = loop.create_future()
        self._loop = loop
        self._process = process
        self._stepped = stepped
        self._progress = progress
        self._clock = clock
        self._step_timeout_s = step_timeout_s
        self._gone = gone
        self._watchdog = self._watch(LOADING_SILENCE_S)
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._tickets = itertools.count()
        self._asked: dict[int, asyncio.Future[None]] = {}
        """What waits for `Done` or `Refused`, by ticket."""

    @property
    def is_up(self) -> bool:
        return self.ready.done() and not self.lost.done()

    def send(self, message: ToEngine) -> None:
        """Never waits; what is sent to an engine that is lost is dropped."""
        if not self.lost.done():
            assert self._transport is not None
            self._transport.write(pack(message))

    def ask(self, make: Callable[[int], ToEngine]) -> asyncio.Future[None]:
        """Sends what `make` makes of a new ticket. The future is done once it is answered, and
        raises what it was refused with, or EngineDead. To be awaited shielded: the answer comes
        whatever becomes of who asked."""
        ticket = next(self._tickets)
        answer = self._loop.create_future()
        answer.add_done_callback(_retrieved)  # who asked may be gone
        if self.lost.done():
            answer.set_exception(self._gone())
        else:
            self.send(make(ticket))
            self._asked[ticket] = answer
        return answer

    def lose(self, reason: str, *, kill_in_s: float = 0.0) -> None:
        """Nothing more is expected of it."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if not self.ready.done():
            self.ready.set_exception(EngineDead(f"The engine did not start: {reason}."))
        for answer in self._asked.values():
            answer.set_exception(self._gone())
        self._asked.clear()
        self._loop.call_later(kill_in_s, self._kill) if kill_in_s else self._kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop.call_later(_CHECK_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lose("its process has ended")

    def data_received(self, data: bytes) -> None:
        self._watchdog.heard(self._clock.now())
        for frame in self._frames.feed(data):
            if not self.lost.done():  # else all that waited for it were told: it is to be killed
                self._take(decode_from_engine(frame))

    def _take(self, message: FromEngine) -> None:
        match message:
            case Stepped():
                self._stepped(message)
            case Done(ticket):
                self._asked.pop(ticket).set_result(None)
            case Refused(ticket, failure):
                self._asked.pop(ticket).set_exception(failure.error())
            case Heartbeat():
                self._watchdog.beat(message)
            case Progress(line):
                self._progress(line)
            case Ready():
                self.ready.set_result(message)
                self._watchdog = self._watch(SILENCE_S)
            case Failed(failure):
                self.ready.set_exception(failure.error())
                self.lose(failure.message)
            case Ended(reason):
                self.lose(reason)

    def _watch(self, silence_s: float) -> Watchdog:
        return Watchdog(self._clock.now(), step_timeout_s=self._step_timeout_s, silence_s=silence_s)

    def _check(self) -> None:
        if self.lost.done():
            return
        if (fault := self._watchdog.fault(self._clock.now())) is not None:
            self._process.dump()
            self.lose(fault, kill_in_s=_DUMP_S)
        else:
            self._loop.call_later(_CHECK_S, self._check)

    def _kill(self) -> None:
        self._process.kill()
        if self._transport is not None:
            self._transport.abort()


def _retrieved(answer: asyncio.Future[Any]) -> None:
    """Of a failure that nobody waits for, asyncio would complain."""
    if not answer.cancelled():
        answer.exception()
