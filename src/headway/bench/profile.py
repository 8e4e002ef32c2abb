"""Where time goes, by looking at what each thread is doing every few milliseconds.

Nothing is instrumented, so what is measured runs as it does otherwise, whatever executes it. A
look counts for the time since the one before it: where C++ holds the interpreter, looks are few,
and each stands for more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

__all__ = ["Profile", "profiled", "shares"]

_PACKAGE = "headway"
_SWITCH_S = 0.0001
_WAITING = frozenset({"wait", "acquire", "get", "result", "join", "select"})
_WAITING_FILES = ("threading.py", "queue.py", "_base.py", "selectors.py")

_PHASES: Mapping[str, str] = {
    "core": "schedule",
    "runtime": "execute",
    "text": "text",
    "record": "record",
    "engine": "engine",
    "metrics": "engine",
}
"""Room → phase of a step. The engine's own work is what no room below it does."""


@dataclass(slots=True)
class Profile:
    """Seconds that threads were busy in our code, by where they were."""

    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    places: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """`module.function`, the innermost of ours."""

    def lines(self, most: int = 12) -> list[str]:
        """The phases, then the places where most of it was, as shares."""
        total = sum(self.phases.values())
        return [
            *shares("phase", self.phases, total=total, most=most),
            *shares("function", self.places, total=total, most=most),
        ]


def shares(
    title: str, seconds: Mapping[str, float], *, total: float | None = None, most: int = 12
) -> list[str]:
    """A table of the largest, as shares of the total, which is their sum if not given; nothing
    where there is nothing."""
    total = sum(seconds.values()) if total is None else total
    if not total:
        return []
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:most]
    return [
        f"  {title:<50}{'share':>7}",
        *(f"  {name:<50}{100 * value / total:6.1f}%" for name, value in largest),
    ]


@contextmanager
def profiled(interval_s: float = 0.002) -> Iterator[Profile]:
    """Looks at all other threads until the block is left; the profile is whole then."""
    profile, stop = Profile(), threading.Event()
    thread = threading.Thread(target=_watch, args=(profile, stop, interval_s), daemon=True)
    # Python must give way in the middle of short work too, or it would never be seen there.
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    thread.start()
    try:
        yield profile
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def _watch(profile: Profile, stop: threading.Event, interval_s: float) -> None:
    own, before = threading.get_ident(), time.perf_counter()
    while not stop.wait(interval_s):
        now = time.perf_counter()
        for thread, frame in sys._current_frames().items():
            if thread != own:
                note(profile, frame, now - before)
        before = now


def note(profile: Profile, frame: FrameType, seconds: float) -> None:
    """Counts a thread's stack, unless it waits or has nothing to do with us."""
    if frame.f_code.co_name in _WAITING and frame.f_code.co_filename.endswith(_WAITING_FILES):
        return
    at: FrameType | None = frame
    while at is not None:
        module = str(at.f_globals.get("__name__", ""))
        package, _, rest = module.partition(".")
        if package == _PACKAGE:
            phase = _PHASES.get(rest.partition(".")[0], "other")
            profile.phases[phase] += seconds
            place = f"{rest}.{at.f_code.co_qualname}"
            profile.places[place] += seconds
            return
        at = at.f_back
