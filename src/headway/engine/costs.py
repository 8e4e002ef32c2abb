"""What a step costs on this machine, measured while it serves (rule S16)."""

from __future__ import annotations

from headway.metrics import Costs, StepRecord

__all__ = ["CostMeter", "LinearFit"]

_MEMORY = 0.99
"""Weight of a step's measurement after the next one: about the last hundred count."""
_LEAST_SPREAD = 16.0
"""Standard deviation of the step sizes, in tokens, from which on a slope can be told."""


class LinearFit:
    """Fits y = intercept + slope · x to the last observations (weighted least squares).

    Args:
        memory: weight of an observation after the next one; in (0, 1).
        least_spread: standard deviation of x from which on a slope can be told.
    """

    _LEAST_COUNT = 8

    def __init__(self, *, memory: float, least_spread: float) -> None:
        self._memory = memory
        self._least_variance = least_spread**2
        self._count = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        memory = self._memory
        self._count += 1
        self._weight = memory * self._weight + 1.0
        self._x = memory * self._x + x
        self._y = memory * self._y + y
        self._xx = memory * self._xx + x * x
        self._xy = memory * self._xy + x * y

    @property
    def mean(self) -> tuple[float, float] | None:
        """Of x and of y; None before the first observation."""
        return (self._x / self._weight, self._y / self._weight) if self._count else None

    @property
    def slope(self) -> float | None:
        """None until x took values that differ enough."""
        if self._count < self._LEAST_COUNT:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance < self._least_variance:
            return None
        return (self._xy / self._weight - mean_x * mean_y) / variance


class CostMeter:
    """What one more prompt token adds to a step: the slope of its duration over its tokens.

    Args:
        block_copy_s: seconds that copying one KV block takes, one way.
    """

    def __init__(self, block_copy_s: float) -> None:
        self._block_copy_s = block_copy_s
        self._fit = LinearFit(memory=_MEMORY, least_spread=_LEAST_SPREAD)

    def observe(self, step: StepRecord) -> None:
        """Takes a step that was run; those that failed or copied blocks would mislead."""
        if step.failed or not step.num_tokens:
            return
        if step.swapped_out_blocks or step.swapped_in_blocks:
            return
        self._fit.observe(float(step.num_tokens), step.duration_s)

    @property
    def costs(self) -> Costs | None:
        """None until steps of different sizes were seen."""
        slope = self._fit.slope
        return None if slope is None else Costs(max(slope, 0.0), self._block_copy_s)
