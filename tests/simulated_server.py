"""Servers over simulated engines: HTTP, processes, scheduler and clock are real, and a step takes
a fixed time.

    simulated_server.py '{"NAME": {"args": {…}, "settings": {…}}, …}'

One process serves them all, each on a port and with an engine's process of its own. It prints their
addresses by name, as JSON, once all take requests, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from starlette.types import ASGIApp

from headway.config import EngineArgs
from headway.engine.collector import calm_collector
from headway.server.app import create_app
from headway.server.generation import ServedModel
from headway.server.listen import listening, url_of
from headway.server.process.launch import EngineProcess
from headway.server.process.remote import EngineObservers, RemoteEngine
from headway.server.run import Server
from headway.server.settings import ServerSettings
from headway.server.watch.telemetry import Telemetry
from server.tiny_core import AlphabetTokenizer
from simulated_child import EXACTNESS, FACTORY

__all__ = ["MODEL", "VOCAB_SIZE", "simulated_servers"]

MODEL = "simulated"
VOCAB_SIZE = AlphabetTokenizer.vocab_size

Options = Mapping[str, Mapping[str, object]]
"""`args`: of `EngineArgs`; `settings`: of `ServerSettings`."""


@contextlib.contextmanager
def simulated_servers(options: Mapping[str, Options]) -> Iterator[dict[str, str]]:
    """Yields their addresses, once they take requests; they end with the block."""
    command = [sys.executable, str(Path(__file__)), json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, "the simulated servers have not started"
            yield json.loads(line)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


async def _serve(options: Mapping[str, Options], ended: asyncio.Event) -> None:
    """All of them, until it is to end."""
    with contextlib.ExitStack() as stack:
        servers = {name: _Simulated(stack, **each) for name, each in options.items()}
        async with asyncio.TaskGroup() as tasks:
            for server in servers.values():
                tasks.create_task(server.server.run())
            for server in servers.values():
                await server.ready.wait()
            calm_collector()
            print(json.dumps({name: each.url for name, each in servers.items()}), flush=True)
            await ended.wait()
            for server in servers.values():
                server.server.stop(0)


class _Simulated:
    """One server and what it is made of, as `process/front.py` and `loading.py` compose it."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        args: Mapping[str, Any] = {},
        settings: Mapping[str, Any] = {},
    ) -> None:
        self._settings = ServerSettings(**({"port": 0} | dict(settings)))
        self._args = EngineArgs(**args)
        self._engine = RemoteEngine(
            EngineProcess(FACTORY), step_timeout_s=self._settings.step_timeout
        )
        self._telemetry = Telemetry(
            self._settings, now=time.monotonic, epoch_s=time.time() - time.monotonic()
        )
        sock = stack.enter_context(listening(self._settings))
        self.url = url_of(sock, self._settings).removesuffix("/v1")
        self.ready = asyncio.Event()
        self.server = Server(
            self._engine,
            self._load,
            sock,
            on_ready=self.ready.set,
            settings=self._settings,
            wrap=lambda app: self._telemetry.wrap(app, ()),
        )

    async def _load(self) -> ASGIApp:
        self._telemetry.model_opened(MODEL, by_tenant=False)
        observers = EngineObservers(
            started=lambda ready: self._telemetry.engine_started(ready.cache),
            lost=self._telemetry.engine_lost,
            stats=self._telemetry.observe,
        )
        ready = await self._engine.start(self._args, observers)
        model = ServedModel(
            names=(MODEL,),
            created=1,
            tokenizer=AlphabetTokenizer(),
            chat_template=None,
            sampling_defaults={},
            max_model_len=ready.max_model_len,
            exactness=EXACTNESS,
        )
        return create_app(self._engine, model, metrics=self._telemetry.render)


async def _main(options: Mapping[str, Options]) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        sys.stdin.read()
        with contextlib.suppress(RuntimeError):  # it ended before its reader
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    await _serve(options, ended)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
