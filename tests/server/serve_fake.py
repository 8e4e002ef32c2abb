"""A process that serves a fake engine whose every answer hangs after its first token.

serve_fake.py fake|stuck END_WITHIN_S
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from starlette.types import ASGIApp

from headway.server import run
from headway.server.listen import listening, url_of
from headway.server.settings import ServerSettings
from server.fake_engine import HANG, FakeEngine, delta
from server.serving import Owned, application


class StuckEngine(FakeEngine):
    """One that does not end."""

    def stop(self) -> None:
        print("stopping", flush=True)
        threading.Event().wait()


def main(kind: str, end_within_s: float) -> None:
    engine = StuckEngine() if kind == "stuck" else FakeEngine()
    engine.script = lambda request: [delta("a"), HANG]
    app = application(engine, engine.model)
    settings = ServerSettings(port=0)
    run.END_WITHIN_S = end_within_s

    async def load() -> ASGIApp:
        return app

    with listening(settings) as sock:
        line = f"Serving {engine.model.name} at {url_of(sock, settings)}"
        server = run.Server(Owned(engine), load, sock, on_ready=lambda: print(line, flush=True))
        run.serve(server, drain_timeout_s=0.2)
    print("returned", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
