"""What a step costs on this machine, measured while it serves (rule S16)."""

from __future__ import annotations

from headway.metrics import Costs, StepRecord

__all__ = ["CostMeter"]

_MEMORY = 0.99
"""Weight of a step's measurement after the next one: about the last hundred count."""
_LEAST_STEPS = 8
_LEAST_SPREAD = 16.0
"""Standard deviation of the step sizes, in tokens, from which on a slope can be told."""


class CostMeter:
    """Fits duration = fixed + slope × tokens to the last steps; the slope is what one more
    prompt token costs.

    Args:
        block_copy_s: seconds that copying one KV block takes, one way.
    """

    def __init__(self, block_copy_s: float) -> None:
        self._block_copy_s = block_copy_s
        self._num_steps = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, step: StepRecord) -> None:
        """Takes a step that was run; those that failed or copied blocks would mislead."""
        if step.failed or not step.num_tokens:
            return
        if step.swapped_out_blocks or step.swapped_in_blocks:
            return
        x, y = float(step.num_tokens), step.duration_s
        self._num_steps += 1
        self._weight = _MEMORY * self._weight + 1.0
        self._x = _MEMORY * self._x + x
        self._y = _MEMORY * self._y + y
        self._xx = _MEMORY * self._xx + x * x
        self._xy = _MEMORY * self._xy + x * y

    @property
    def costs(self) -> Costs | None:
        """None until steps of different sizes were seen."""
        if self._num_steps < _LEAST_STEPS:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance < _LEAST_SPREAD**2:
            return None
        slope = (self._xy / self._weight - mean_x * mean_y) / variance
        return Costs(max(slope, 0.0), self._block_copy_s)
