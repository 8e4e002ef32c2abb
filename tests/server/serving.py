"""A real server on a loopback port, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import httpx

from headway.server.app import create_app
from headway.server.generation import ServedModel
from headway.server.prometheus import PrometheusMetrics
from headway.server.run import EngineServer, OwnedEngine, bind

__all__ = ["CREATED", "MODEL", "TIMEOUT_S", "abandoned_request", "serving"]

MODEL = "the-model"
CREATED = 1_700_000_000
TIMEOUT_S = 20.0
"""For what must happen; nothing waits this long unless it is broken."""


@contextlib.contextmanager
def serving(engine: OwnedEngine, model: ServedModel) -> Iterator[str]:
    """Yields the base URL."""
    sock = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    metrics = PrometheusMetrics(model.name)
    engine.add_observer(metrics)
    app = create_app(engine, model, metrics=metrics.render)
    ready = threading.Event()
    server = EngineServer(engine, app, on_ready=ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])))
    thread.start()
    try:
        assert ready.wait(TIMEOUT_S)
        yield url
    finally:
        server.should_exit = True
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def abandoned_request(client: httpx.Client, body: dict[str, object]) -> Iterator[None]:
    """A completions request whose client goes away at the end, whatever came back."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, TIMEOUT_S) as connection:
        connection.sendall(head.encode() + content)
        yield
