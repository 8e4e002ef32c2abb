"""The engine in its own process, as the server uses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from headway.clock import Clock, MonotonicClock
from headway.config import EngineArgs
from headway.engine.outputs import NewRequest
from headway.engine.streams import RequestStream, Streams
from headway.errors import EngineDead, HeadwayError, InvalidRequest
from headway.server.process.launch import EngineProcess
from headway.server.process.link import EngineLink
from headway.server.process.messages import Abort, Add, CheckRoom, Ready, Start, Stepped, Stop
from headway.server.watch.stats import StepStats

__all__ = ["EngineObservers", "RemoteEngine"]

_EXIT_S = 2.0
"""For an engine that was told to stop; it is killed then."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineObservers:
    """Who is told what, in the event loop."""

    started: Callable[[Ready], None] = lambda _ready: None
    """Of each engine that takes requests: the first, and those in the place of one lost."""
    lost: Callable[[], None] = lambda: None
    """Of the end of each of them that nobody asked for."""
    stats: Callable[[StepStats], None] = lambda _stats: None
    """Of each step."""
    progress: Callable[[str], None] = lambda _line: None
    """Of what is being done while an engine starts, in lines for a person."""


class RemoteEngine:
    """An engine's process, and with `restart` those that come after it. Implements `OwnedEngine`.

    All is for one event loop.

    Args:
        process: is its own from here on.
        step_timeout_s: see `Watchdog`.
        restart: start another engine when this one is lost.
    """

    def __init__(
        self,
        process: EngineProcess,
        *,
        step_timeout_s: float,
        restart: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._step_timeout_s = step_timeout_s
        self._restart = restart
        self._observers = EngineObservers()
        self._clock = clock or MonotonicClock()
        self._process: EngineProcess | None = process
        self._another = process.another
        self._start_s: float | None = None
        """What the last start took: what the next will."""
        self._link: EngineLink | None = None
        self._streams = Streams(self._abort)
        self._supervisor: asyncio.Task[EngineDead] | None = None

    @property
    def is_alive(self) -> bool:
        return self._link is not None and self._link.is_up

    @property
    def pid(self) -> int | None:
        """Of its process; None: there is none."""
        return None if self._process is None else self._process.pid

    async def start(self, args: EngineArgs, observers: EngineObservers) -> Ready:
        """Has the process load its model. Returns once it takes requests.

        Raises InvalidConfig, ModelError or EngineDead where it cannot.
        """
        self._observers = observers
        ready = await self._connect(args)
        # Another may find less memory: it must serve what was promised, or not start.
        pinned = replace(args, max_model_len=ready.max_model_len)
        self._supervisor = asyncio.create_task(self._supervise(pinned))
        return ready

    async def dead(self) -> EngineDead:
        """Returns once the engine is lost for good, and why."""
        assert self._supervisor is not None
        return await asyncio.shield(self._supervisor)

    async def stop(self) -> None:
        """Ends all requests, and then the process; returns once it is gone."""
        self._streams.abort_all()
        if self._supervisor is not None:
            self._supervisor.cancel()
        process, self._process = self._process, None
        if process is None:
            return
        if self._link is not None and self._link.is_up:
            self._link.send(Stop())
        else:  # it has nothing to end
            process.kill()
        await asyncio.to_thread(process.wait, _EXIT_S)
        if self._link is None:
            process.sock.close()

    async def check_room(self, num_reqs: int = 1) -> None:
        link = self._usable()
        await asyncio.shield(link.ask(lambda ticket: CheckRoom(ticket, num_reqs)))

    async def add(self, requests: Sequence[NewRequest]) -> list[RequestStream]:
        link = self._usable()
        # Before they are sent: the first delta may overtake the answer.
        streams = self._streams.open([request.request_id for request in requests])
        try:
            answer = link.ask(lambda ticket: Add.of(ticket, requests))
        except OverflowError:
            self._streams.forget(streams)
            raise _too_large_a_number(requests) from None
        answer.add_done_callback(partial(self._answered, streams))
        try:
            await asyncio.shield(answer)
        except asyncio.CancelledError:
            for stream in streams:
                stream.abort()
            raise
        return streams

    def _answered(self, streams: list[RequestStream], answer: asyncio.Future[None]) -> None:
        if answer.exception() is not None:
            self._streams.forget(streams)

    def _usable(self) -> EngineLink:
        if self._link is None or not self._link.is_up:
            raise self._gone()
        return self._link

    def _gone(self) -> EngineDead:
        return EngineDead("The engine has stopped.", self._start_s if self._restart else None)

    def _abort(self, request_id: str) -> None:
        assert self._link is not None
        self._link.send(Abort(request_id))

    def _take(self, message: Stepped) -> None:
        for stats in message.stats:
            self._observers.stats(stats)
        self._streams.deliver(message.deltas)

    async def _connect(self, args: EngineArgs) -> Ready:
        if self._process is None:
            self._process = self._another()
        process, began_s = self._process, self._clock.now()
        self._link = link = EngineLink(
            process,
            stepped=self._take,
            progress=self._observers.progress,
            clock=self._clock,
            step_timeout_s=self._step_timeout_s,
            gone=self._gone,
        )
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: link, sock=process.sock)
        link.send(Start(args))
        ready = await asyncio.shield(link.ready)  # whose end says that there is an engine to stop
        self._start_s = self._clock.now() - began_s
        self._observers.started(ready)
        return ready

    async def _supervise(self, args: EngineArgs) -> EngineDead:
        while True:
            assert self._link is not None
            assert self._process is not None
            reason = await asyncio.shield(self._link.lost)
            self._observers.lost()
            self._streams.fail_all(self._gone())
            ended = await asyncio.to_thread(self._process.wait)
            self._process = None
            logger.error("the engine is lost: %s (%s)", reason, ended)
            if not self._restart:
                return EngineDead(f"the engine is lost: {reason} ({ended})")
            try:
                await self._connect(args)
            except HeadwayError as error:
                return EngineDead(f"the engine is lost, and another does not start: {error}")
            logger.warning("another engine has started")


_INT64 = range(-(2**63), 2**64)


def _too_large_a_number(requests: Sequence[NewRequest]) -> InvalidRequest:
    """Names what does not fit into 64 bits."""
    for request in requests:
        if any(token not in _INT64 for token in request.prompt_token_ids):
            return InvalidRequest("prompt", "holds a token that is not in the vocabulary")
        for item in fields(request.params):
            value = getattr(request.params, item.name)
            if isinstance(value, int) and value not in _INT64:
                return InvalidRequest(item.name, "is a number of more than 64 bits")
    return InvalidRequest("priority", "is a number of more than 64 bits")
