"""Python's garbage collector. These are settings of the whole process, for those who own one."""

from __future__ import annotations

import gc

__all__ = ["calm_collector", "set_aside_loaded"]

_YOUNG_OBJECTS = 100_000
_YOUNG_PER_MIDDLE = 50
_MIDDLE_PER_OLD = 1000


def calm_collector() -> None:
    """For a process whose work is a step loop: sets aside what was loaded, and makes the collector
    come seldom.

    A step of many requests makes thousands of small records, in no cycles, which go when they
    are counted down to nothing. By default the collector looks at them several times a step,
    and at all of them again and again: a quarter of what a step of 1,024 requests costs.
    """
    set_aside_loaded()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_PER_MIDDLE, _MIDDLE_PER_OLD)


def set_aside_loaded() -> None:
    """Puts what was loaded so far out of the collector's sight: it stays, and is a lot."""
    gc.collect()
    gc.freeze()
