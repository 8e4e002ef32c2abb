"""An asyncio event loop on virtual time: where nothing has arrived, the clock moves on to the next
timer, so that a scripted server and its client are exact and take no time.

A connection to a server of the same loop is a pair of Unix sockets: what is written into one can be
read from the other at once. Over TCP it arrives when the kernel comes to it, which on a busy
machine may be after the clock has moved on.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_STUCK_S = 60.0


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(_STUCK_S)
            assert events, "nothing will ever happen"
            return events
        events = super().select(0)
        if not events:
            self.now += max(timeout, 0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        self._servers: dict[int, tuple[asyncio.Server, Callable[[], asyncio.BaseProtocol]]] = {}
        """By port, with what makes the protocol of a connection."""
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    async def create_server(self, factory: Any, *args: Any, **options: Any) -> asyncio.Server:
        server = await super().create_server(factory, *args, **options)
        for sock in server.sockets:
            self._servers[sock.getsockname()[1]] = server, factory
        return server

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        server, serve = self._servers.get(port, (None, None))
        if server is None or not server.is_serving():
            return await super().create_connection(factory, host, port, **options)
        ours, theirs = socket.socketpair()
        await self.connect_accepted_socket(serve, theirs)
        return await super().create_connection(factory, sock=ours)


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
