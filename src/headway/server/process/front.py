"""The server's process, from when its engine's process was started to its end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from starlette.types import ASGIApp

from headway.config import EngineArgs
from headway.server.listen import url_of
from headway.server.process.launch import EngineProcess
from headway.server.process.loading import load_application
from headway.server.process.remote import RemoteEngine
from headway.server.run import Server, serve
from headway.server.settings import ServerSettings
from headway.server.watch.telemetry import Telemetry

__all__ = ["serve_engine"]


def serve_engine(
    process: EngineProcess,
    sock: socket.socket,
    args: EngineArgs,
    settings: ServerSettings,
    *,
    say: Callable[[str], None],
    started_s: float,
) -> None:
    """Has the process load a model, and serves it on a listening socket until it is told to stop.

    `say` gets lines for a person; `started_s` is when the command began, on the monotonic clock.

    Raises InvalidConfig, ModelError or EngineDead.
    """
    telemetry = Telemetry(settings, now=time.monotonic, epoch_s=time.time() - time.monotonic())
    keys = settings.api_keys(os.environ)
    engine = RemoteEngine(
        process, step_timeout_s=settings.step_timeout, restart=settings.restart_engine
    )
    name = ""

    async def load() -> ASGIApp:
        nonlocal name
        app, model = await load_application(
            engine, args, settings, telemetry, say=say, created=int(time.time())
        )
        name = model.name
        return app

    def announce() -> None:
        say(f"Started in {time.monotonic() - started_s:.1f} s")
        print(f"Serving {name} at {url_of(sock, settings)} (Ctrl-C to stop)", flush=True)

    server = Server(
        engine,
        load,
        sock,
        on_ready=announce,
        settings=settings,
        wrap=lambda app: telemetry.wrap(app, keys),
    )
    serve(server, drain_timeout_s=settings.drain_timeout)
    telemetry.close()
