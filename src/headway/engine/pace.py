"""When to make the next plan while a step runs (rule S11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headway.metrics import StepRecord

__all__ = ["Pace"]

_LEAD_S = 0.003
"""How long before a step's end the next plan is made: what planning takes, and some."""
_RECENT = 8
"""Steps of a size that are remembered: the shortest of them says when the next may end."""


class Pace:
    """Tells the end of the running step from those before it that were as large.

    A plan made at once would have every request that comes while the step runs wait for one more.
    Made just before the end, it still leaves no gap between the steps.

    Args:
        ended: waits for a handle's step, at most so many seconds; whether it ended.
    """

    def __init__(self, ended: Callable[[Any, float], bool], *, lead_s: float = _LEAD_S) -> None:
        self._ended = ended
        self._lead_s = lead_s
        self._durations: dict[int, deque[float]] = {}

    def observe(self, step: StepRecord) -> None:
        if step.num_tokens and not step.failed:
            size = _size(step.num_tokens)
            self._durations.setdefault(size, deque(maxlen=_RECENT)).append(step.duration_s)

    def wait(self, handle: Any, num_tokens: int, elapsed_s: float) -> bool:
        """Waits until the step is about to end, or has ended (then True). It has that many tokens
        and has run for `elapsed_s`. Does not wait where no step of its size was seen."""
        recent = self._durations.get(_size(num_tokens))
        if recent is None:
            return False
        left_s = min(recent) - self._lead_s - elapsed_s
        return left_s > 0 and self._ended(handle, left_s)


def _size(num_tokens: int) -> int:
    """Equal for numbers that lie within a quarter of each other, about."""
    shift = max(0, num_tokens.bit_length() - 3)
    return num_tokens >> shift << shift
