"""A real server on a loopback port, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import httpx
from starlette.types import ASGIApp

from headway.clock import MonotonicClock
from headway.errors import EngineDead
from headway.metrics import EngineState, Observer
from headway.server.app import create_app
from headway.server.generation import ServedEngine, ServedModel
from headway.server.listen import listening, url_of
from headway.server.run import Server
from headway.server.settings import ServerSettings
from headway.server.watch.instruments import Instruments
from headway.server.watch.prometheus import PrometheusMetrics
from headway.server.watch.stats import StatsObserver
from waiting import IN_TIME_S

__all__ = [
    "CREATED",
    "MODEL",
    "TIMEOUT_S",
    "InProcessEngine",
    "Owned",
    "abandoned_request",
    "application",
    "serving",
]

MODEL = "the-model"
CREATED = 1_700_000_000
TIMEOUT_S = IN_TIME_S


class InProcessEngine(ServedEngine, Protocol):
    """What a test has in the place of the engine's process."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def add_observer(self, observer: Observer) -> None: ...
    @property
    def state(self) -> EngineState: ...


class Owned:
    """An engine of this process, as its server ends it. It is never lost."""

    is_alive = True

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine

    async def dead(self) -> EngineDead:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def stop(self) -> None:
        self._engine.stop()


def application(engine: InProcessEngine, model: ServedModel) -> ASGIApp:
    """The API over an engine that has not started, with its metrics."""
    instruments = Instruments(model.name)
    metrics = PrometheusMetrics(instruments)
    clock = MonotonicClock()
    engine.add_observer(StatsObserver(lambda: engine.state, clock.now, metrics.observe))
    return create_app(engine, model, metrics=instruments.render)


@contextlib.contextmanager
def serving(
    engine: InProcessEngine,
    model: ServedModel,
    settings: ServerSettings | None = None,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[str]:
    """Yields the base URL. The settings are those of the address."""
    app = application(engine, model)

    async def load() -> ASGIApp:
        engine.start()
        return app

    settings = settings or ServerSettings(port=0)
    ready = threading.Event()
    with listening(settings) as sock:
        url = url_of(sock, settings).removesuffix("/v1")
        server = Server(Owned(engine), load, sock, on_ready=ready.set, settings=settings, wrap=wrap)
        thread = threading.Thread(target=lambda: asyncio.run(server.run()))
        thread.start()
        try:
            assert ready.wait(TIMEOUT_S)
            yield url
        finally:
            server.stop(0)
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@contextlib.contextmanager
def abandoned_request(
    client: httpx.Client, body: dict[str, object], headers: str = "Host: x\r\n"
) -> Iterator[None]:
    """A completions request whose client goes away at the end, whatever came back."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, TIMEOUT_S) as connection:
        connection.sendall(head.encode() + content)
        yield
