"""Rotary frequencies, and the ways to scale them to longer contexts.

Formulas: linear, https://arxiv.org/abs/2306.15595; YaRN, https://arxiv.org/abs/2309.00071;
Llama 3's as its reference implementation has it
(https://github.com/meta-llama/llama-models, `apply_scaling`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import ModelError
from headway.models.spec import Rope

__all__ = ["LinearScaling", "Llama3Scaling", "Scaling", "YarnScaling", "rope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float

    def apply(self, frequencies: Sequence[float]) -> Rope:
        return Rope(tuple(frequency / self.factor for frequency in frequencies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Divides the frequencies that turn less than `low_freq_factor` times within the original
    context, keeps those that turn more than `high_freq_factor` times, and blends between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    """Above `low_freq_factor`."""
    original_positions: int

    def apply(self, frequencies: Sequence[float]) -> Rope:
        return Rope(tuple(map(self._scaled, frequencies)))

    def _scaled(self, frequency: float) -> float:
        turns = self.original_positions * frequency / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return _blend(frequency / self.factor, frequency, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Divides the slow frequencies, keeps the fast ones, blends by index between, and makes
    cosine and sine larger."""

    theta: float
    """Base of the frequencies."""
    factor: float
    original_positions: int
    magnitude: float
    beta_fast: float = 32.0
    """Turns within the original context from which on a frequency is kept."""
    beta_slow: float = 1.0
    """Turns up to which it is divided."""
    truncate: bool = True
    """The bounds of the blend are whole indices."""

    def apply(self, frequencies: Sequence[float]) -> Rope:
        pairs = len(frequencies)
        low, high = self._index(self.beta_fast, pairs), self._index(self.beta_slow, pairs)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        width = high - low if high != low else 0.001
        return Rope(
            tuple(
                _blend(frequency / self.factor, frequency, 1 - (index - low) / width)
                for index, frequency in enumerate(frequencies)
            ),
            self.magnitude,
        )

    def _index(self, turns: float, pairs: int) -> float:
        """Of the unscaled frequency that turns so often within the original context."""
        wavelength = self.original_positions / turns
        return pairs * math.log(wavelength / (2 * math.pi)) / math.log(self.theta)


Scaling = LinearScaling | Llama3Scaling | YarnScaling


def rope(
    theta: float,
    head_dim: int,
    scaling: Scaling | None = None,
    divisors: Sequence[float] | None = None,
) -> Rope:
    """Rotary embedding with base `theta`.

    `divisors`, one a pair, are what a model file says in numbers (GGUF's
    `rope_freqs.weight`); they come before the scaling.

    Raises `ModelError` for numbers so absurd that no frequency comes of them.
    """
    pairs = head_dim // 2
    try:
        frequencies = [theta ** (-index / pairs) for index in range(pairs)]
        if divisors is not None:
            frequencies = [f / divisor for f, divisor in zip(frequencies, divisors, strict=True)]
        if scaling is None:
            return Rope(tuple(frequencies))
        result = scaling.apply(frequencies)
    except ArithmeticError as error:
        raise ModelError(f"base {theta:g} with {scaling}: {error}") from error
    if not all(map(math.isfinite, result.frequencies)):
        raise ModelError(f"base {theta:g} with {scaling}: not every frequency is finite")
    return result


def _blend(divided: float, kept: float, share: float) -> float:
    share = min(1.0, max(0.0, share))
    return divided * (1 - share) + kept * share
