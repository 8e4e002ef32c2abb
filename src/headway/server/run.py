"""The server as a process: its socket, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from uvicorn.config import LOGGING_CONFIG

from headway.engine.collector import calm_collector
from headway.errors import InvalidConfig
from headway.metrics import Observer
from headway.server.app import create_app
from headway.server.generation import ServedEngine, ServedModel
from headway.server.prometheus import PrometheusMetrics

__all__ = ["EngineServer", "bind", "serve"]

STOP_WITHIN_S = 1.5
"""From the first signal to the end of `serve`, or else of the process, whatever a step takes."""

_DRAIN_S = 1
"""For clients to take what was sent to them once the engine has stopped."""


class OwnedEngine(ServedEngine, Protocol):
    """An engine that the server starts and stops."""

    def add_observer(self, observer: Observer) -> None: ...

    def start(self) -> None:
        """Begins to work, for the running event loop."""
        ...

    def stop(self) -> None:
        """Ends all requests, and then itself; waits for that."""
        ...


def bind(host: str, port: int) -> socket.socket:
    """Takes the address; do it before a model is loaded. Port 0 takes any free one.

    Raises `InvalidConfig` that names the address and what to change. The caller owns the
    socket until it hands it to `serve`.
    """
    if not 0 <= port <= 65_535:
        raise InvalidConfig("port", f"must be between 0 and 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InvalidConfig("host", f"cannot resolve {host!r}: {error}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        # Lets a restarted server take the port while old connections linger in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from None
    return sock


def serve(
    engine: OwnedEngine,
    model: ServedModel,
    sock: socket.socket,
    *,
    access_log: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Starts the engine and answers on a bound socket until SIGINT or SIGTERM.

    The first signal ends open streams, stops the engine and makes this return; a second one
    ends the process at once, and so do `STOP_WITHIN_S` after the first. Must be called in the
    main thread. `announce` gets one line once requests are taken.
    """
    host, port = sock.getsockname()[:2]
    try:
        sock.listen()
    except OSError as error:
        # Two servers can hold the address until one of them listens.
        sock.close()
        raise _cannot_listen(host, port, error) from None
    name = f"[{host}]" if ":" in host else host
    line = f"Serving {model.name} at http://{name}:{port}/v1 (Ctrl-C to stop)"
    metrics = PrometheusMetrics(model.name)
    engine.add_observer(metrics)
    app = create_app(engine, model, metrics=metrics.render)
    server = EngineServer(engine, app, access_log=access_log, on_ready=lambda: announce(line))
    calm_collector()
    with _signals(server):
        asyncio.run(server.serve([sock]))


class EngineServer(uvicorn.Server):
    """Uvicorn, with the engine running in its event loop for as long as it serves."""

    def __init__(
        self,
        engine: OwnedEngine,
        app: Starlette,
        *,
        access_log: bool = False,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=access_log,
                log_config=LOGGING_CONFIG if access_log else None,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )
        self._engine = engine
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.start()
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First, for it ends every stream: the open responses that Uvicorn then waits for end too.
        self._engine.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `serve`'s."""
        yield


@contextlib.contextmanager
def _signals(server: uvicorn.Server) -> Iterator[None]:
    """Handles SIGINT and SIGTERM for as long as it lasts."""
    deadlines: list[threading.Timer] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if server.should_exit:
            os._exit(128 + number)
        server.should_exit = True
        deadline = threading.Timer(STOP_WITHIN_S, os._exit, (128 + number,))
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


def _cannot_listen(host: str, port: int, error: OSError) -> InvalidConfig:
    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
        return InvalidConfig("host", f"cannot listen on {host}:{port}: {error.strerror}")
    return InvalidConfig(
        "port",
        f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port, "
        "or --port 0 for any free one",
    )
