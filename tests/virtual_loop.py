"""An asyncio event loop on virtual time, over real sockets: where nothing has arrived, the clock
moves on to the next timer, so that a scripted server and its client are exact and take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_ON_ITS_WAY_S = 0.002
"""What was written in this process is readable by then."""
_STUCK_S = 5.0


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(_STUCK_S)
            assert events, "nothing will ever happen"
            return events
        events = super().select(0 if timeout <= 0 else _ON_ITS_WAY_S)
        if not events:
            self.now += max(timeout, 0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
