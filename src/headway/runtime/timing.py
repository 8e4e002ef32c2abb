"""How long something takes on this machine."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

__all__ = ["median_s"]

_MOST_TIMES = 5
_LONG_ENOUGH_S = 0.01


def median_s(action: Callable[[], object], timer: Callable[[], float]) -> float:
    """Median of a few runs, fewer where they are long. One before them does not count: it pays
    for memory that was never touched."""
    action()
    taken: list[float] = []
    while len(taken) < _MOST_TIMES and sum(taken) < _LONG_ENOUGH_S:
        start = timer()
        action()
        taken.append(timer() - start)
    return median(taken)
