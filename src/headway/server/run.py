"""The server's life: it listens, loads, serves, drains, and ends.

    listening ─▶ loading ─▶ serving ─ signal ─▶ draining ─▶ stopped: `Server.run` returns
                    │           └──── the engine is lost ──────┴───▶ it raises EngineDead
                    └──────────────── and a signal ────────────────▶ it returns

What the two signals mean, and how much time each gives, is said in `serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from headway.errors import EngineDead
from headway.server.connection import MAX_HEADER_BYTES, Connection
from headway.server.gate import Gate
from headway.server.settings import ServerSettings

__all__ = ["OwnedEngine", "Server", "serve"]

_logger = logging.getLogger(__name__)

INTERRUPT_DRAIN_S = 2.0
"""What accepted requests get after Ctrl-C: a person waits."""
END_WITHIN_S = 5.0
"""From the end of draining to the end of the process, whatever hangs."""

_SENT_WITHIN_S = 1
"""For clients to take what was sent to them once the engine has stopped."""
_LINGER_S = 1.5
"""With a dead engine, for its clients to be told, and for others to see it in `/health`."""


class OwnedEngine(Protocol):
    """An engine as its server ends it; who makes the application starts it."""

    @property
    def is_alive(self) -> bool:
        """It takes requests."""
        ...

    async def dead(self) -> EngineDead:
        """Returns once it is lost for good, and why."""
        ...

    async def stop(self) -> None:
        """Ends all requests, and then itself; returns once it is gone. It may not have started."""
        ...


class Server:
    """HTTP over one engine, from its start to its end.

    Args:
        load: starts the engine and makes the application over it. Raises what keeps it from that.
        sock: bound and listening.
        on_ready: called once requests are taken.
        settings: of TLS, and the root path.
        wrap: what goes around all that is answered, at every stage.
    """

    def __init__(
        self,
        engine: OwnedEngine,
        load: Callable[[], Awaitable[ASGIApp]],
        sock: socket.socket,
        *,
        on_ready: Callable[[], None],
        settings: ServerSettings | None = None,
        wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        self._engine = engine
        self._load = load
        self._sock = sock
        self._on_ready = on_ready
        self._settings = settings or ServerSettings()
        self._wrap = wrap
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_s: float | None = None
        """What accepted requests get, once it is to end."""
        self._stopping = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self._drain_s is not None

    def stop(self, drain_s: float) -> None:
        """Makes `run` take no more requests, and return once those that it has are answered, or
        after so long. May be called in any thread, and in a signal's handler, at any time."""
        self._drain_s = drain_s
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Returns once it was told to stop. Raises what `load` raises, or EngineDead."""
        self._loop = asyncio.get_running_loop()
        if self.is_stopping:  # it was told so before there was a loop to tell
            self._stopping.set()
        gate = Gate()
        http = _HTTP(self._wrap(gate), self._settings)
        listening = asyncio.create_task(http.serve([self._sock]))
        listening.add_done_callback(lambda _: self._stopping.set())
        try:
            await self._live(gate)
        finally:
            # First, for it ends every stream: what Uvicorn then waits for ends too.
            await self._engine.stop()
            http.should_exit = True
            await listening

    async def _live(self, gate: Gate) -> None:
        loading = asyncio.ensure_future(self._load())
        if not await self._first(loading):
            return
        gate.open(loading.result())
        self._on_ready()
        _logger.info("serving")
        dead = asyncio.ensure_future(self._engine.dead())
        if await self._first(dead):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LINGER_S)
            raise dead.result()
        gate.drain()
        fields = {"requests": gate.num_active, "within_s": self._drain_s}
        _logger.info("draining", extra={"fields": fields})
        await asyncio.wait([asyncio.ensure_future(gate.idle())], timeout=self._drain_s)
        _logger.info("stopping", extra={"fields": {"cut_off": gate.num_active}})
        if not self._engine.is_alive:  # what was accepted was not finished
            with contextlib.suppress(TimeoutError):  # another engine starts: that is not waited for
                raise await asyncio.wait_for(self._engine.dead(), _LINGER_S)

    async def _first(self, work: asyncio.Future[Any]) -> bool:
        """Whether the work is done before the server is to stop; else it is cancelled."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        done = work.done()
        for each in (work, stopping):
            each.cancel()
        return done


def serve(server: Server, *, drain_timeout_s: float) -> None:
    """Runs it until SIGTERM, which gives accepted requests so long, or SIGINT, which gives them
    `INTERRUPT_DRAIN_S`. A SIGINT after either ends the process at once; a SIGTERM changes nothing.

    Must be called in the main thread. Raises what `Server.run` raises.
    """
    with _signals(server, drain_timeout_s):
        asyncio.run(server.run())


class _HTTP(uvicorn.Server):
    """Uvicorn, told what it should not decide."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                root_path=settings.root_path,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=_SENT_WITHIN_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `serve`'s."""
        yield


@contextlib.contextmanager
def _signals(server: Server, drain_timeout_s: float) -> Iterator[None]:
    """Handles SIGINT and SIGTERM for as long as it lasts."""
    deadlines: list[threading.Timer] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if server.is_stopping:
            if number == signal.SIGTERM:
                return  # some supervisors repeat it; what they mean by at once is SIGKILL
            os._exit(128 + number)  # the engine's process sees that, and ends
        drain_s = INTERRUPT_DRAIN_S if number == signal.SIGINT else drain_timeout_s
        server.stop(drain_s)
        deadline = threading.Timer(drain_s + END_WITHIN_S, os._exit, (128 + number,))
        deadline.daemon = True
        deadline.start()
        deadlines.append(deadline)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for deadline in deadlines:
            deadline.cancel()
