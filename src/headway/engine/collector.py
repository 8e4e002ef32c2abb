"""Python's garbage collector, for a process whose work is a step loop."""

from __future__ import annotations

import gc

__all__ = ["calm_collector"]

_YOUNG_OBJECTS = 100_000
_YOUNG_PER_MIDDLE = 50
_MIDDLE_PER_OLD = 1000


def calm_collector(young_objects: int = _YOUNG_OBJECTS) -> None:
    """Puts what was loaded so far out of the collector's sight, and makes it come seldom.

    A step of many requests makes thousands of small records, in no cycles, which go when they
    are counted down to nothing. By default the collector looks at them several times a step,
    and at all of them again and again: a quarter of what a step of 1,024 requests costs. This
    is a setting of the whole process, so it is for those who own one.

    Args:
        young_objects: so many more than went must come for it to look at the young ones. Fewer are
            for a process in whose cycles there may be much memory: an error may hold the body of
            the request that it refuses.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young_objects, _YOUNG_PER_MIDDLE, _MIDDLE_PER_OLD)
