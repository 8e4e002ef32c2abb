"""A process that serves the tiny engine, in a process of its own, as `headway serve` would.

serve_tiny.py '{"args": {…}, "settings": {…}, "linger_s": 60}'

`linger_s`: how long the server answers once its engine is dead, for a test to see it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from starlette.types import ASGIApp

from headway.config import EngineArgs
from headway.engine.exactness import Exactness
from headway.errors import EngineDead, HeadwayError
from headway.server import run
from headway.server.app import create_app
from headway.server.generation import ServedModel
from headway.server.listen import listening, url_of
from headway.server.process.launch import EngineProcess
from headway.server.process.remote import EngineObservers, RemoteEngine
from headway.server.settings import ServerSettings
from headway.server.watch.instruments import Instruments
from headway.server.watch.prometheus import PrometheusMetrics
from server.tiny_child import FACTORY
from server.tiny_core import MAX_MODEL_LEN, AlphabetTokenizer


class Telling(RemoteEngine):
    """Says on standard output that the server knows of its end."""

    async def dead(self) -> EngineDead:
        error = await super().dead()
        print("dead", flush=True)
        return error


def main(options: dict[str, Any]) -> None:
    run._LINGER_S = options.get("linger_s", run._LINGER_S)
    args = EngineArgs(**options.get("args", {}))
    settings = ServerSettings(**({"port": 0} | options.get("settings", {})))
    model = ServedModel(
        names=("the-model",),
        created=1,
        tokenizer=AlphabetTokenizer(),
        chat_template=None,
        sampling_defaults={},
        max_model_len=MAX_MODEL_LEN,
        exactness=Exactness(False, "not probed"),
    )
    instruments = Instruments(model.name)
    metrics = PrometheusMetrics(instruments)
    with listening(settings) as sock:
        engine = Telling(
            EngineProcess(FACTORY),
            step_timeout_s=settings.step_timeout,
            restart=settings.restart_engine,
        )
        print(url_of(sock, settings), flush=True)

        async def load() -> ASGIApp:
            observers = EngineObservers(
                started=lambda ready: metrics.engine_started(ready.cache),
                lost=metrics.engine_lost,
                stats=metrics.observe,
            )
            await engine.start(args, observers)
            return create_app(engine, model, metrics=instruments.render)

        server = run.Server(
            engine, load, sock, on_ready=lambda: print("ready", flush=True), settings=settings
        )
        run.serve(server, drain_timeout_s=settings.drain_timeout)
    print("returned", flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except HeadwayError as error:
        sys.exit(f"error: {error}")
