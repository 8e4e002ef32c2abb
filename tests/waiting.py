"""Waiting for what must come. No test tells from the time that passes that something has happened:
it waits for a state that was not there before."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["IN_TIME_S", "in_time"]

IN_TIME_S = 60.0
"""Nothing takes this long unless it is broken; a busy machine may take a good part of it."""
_PAUSE_S = 0.002
"""Between two looks, so that what is waited for gets the processor."""


def in_time(holds: Callable[[], bool]) -> bool:
    """Whether it holds, now or in time."""
    deadline = time.monotonic() + IN_TIME_S
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return held
