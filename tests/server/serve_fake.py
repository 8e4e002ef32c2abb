"""A process that serves a fake engine whose every answer hangs after its first token."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from headway.server.run import bind, serve
from server.fake_engine import HANG, FakeEngine, delta


class StuckEngine(FakeEngine):
    """One whose last step never ends."""

    def stop(self) -> None:
        print("stopping", flush=True)
        threading.Event().wait()


def main(kind: str) -> None:
    engine = StuckEngine() if kind == "stuck" else FakeEngine()
    engine.script = lambda request: [delta("a"), HANG]
    sock = bind("127.0.0.1", 0)
    serve(engine, engine.model, sock)
    print("returned", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
