"""A process that serves a fake engine whose every answer hangs after its first token."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parent.parent))

from headway.engine.async_engine import AsyncEngine
from headway.server.run import bind, serve
from server.fake_engine import HANG, FakeEngine, delta
from server.serving import CREATED, MODEL


class StuckEngine(FakeEngine):
    """One whose last step never ends."""

    def stop(self) -> None:
        print("stopping", flush=True)
        threading.Event().wait()


def main(kind: str) -> None:
    engine = StuckEngine() if kind == "stuck" else FakeEngine()
    engine.script = lambda request: [delta("a"), HANG]
    sock = bind("127.0.0.1", 0)
    serve(cast(AsyncEngine, engine), sock, served_model_name=MODEL, created=CREATED)
    print("returned", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
