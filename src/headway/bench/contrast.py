"""What moved between a baseline and a variant, by how much, and whether that is more than noise.

Trials of one round met the same load at about the same time, so each round gives one ratio of
variant to baseline. The interval is Student's t over the logarithms of these ratios, 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.bench.trials import Trial

__all__ = ["FIGURES", "Change", "Figure", "Verdict", "contrasts"]

Verdict = Literal["better", "worse", "noise", "unclear"]
"""`noise`: the interval holds 1; `unclear`: there are too few rounds for an interval, or a figure is
0 or missing in some."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a trial's result that is compared."""

    key: str
    """In `Trial.result`: `median_ttft_ms`."""
    title: str
    unit: str
    higher_is_better: bool


FIGURES: tuple[Figure, ...] = (
    Figure("request_throughput", "requests", "1/s", True),
    Figure("output_throughput", "output tokens", "tok/s", True),
    Figure("median_ttft_ms", "TTFT, median", "ms", False),
    Figure("p99_ttft_ms", "TTFT, p99", "ms", False),
    Figure("median_tpot_ms", "TPOT, median", "ms", False),
    Figure("p99_tpot_ms", "TPOT, p99", "ms", False),
    Figure("p99_itl_ms", "ITL, p99", "ms", False),
    Figure("median_e2el_ms", "E2EL, median", "ms", False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure of one variant beside the baseline's."""

    variant: str
    class_name: str | None
    """Of the load's requests; None: all."""
    figure: Figure
    baseline: float | None
    """Median over the rounds; None: nothing to take one of."""
    value: float | None
    ratio: float | None
    """Geometric mean of the rounds' ratios; value / baseline."""
    low: float | None
    high: float | None
    """Of the ratio, 95 %."""
    verdict: Verdict


def contrasts(
    trials: Sequence[Trial], baseline: str, *, figures: Sequence[Figure] = FIGURES
) -> list[Change]:
    """Each figure of every other variant beside the baseline's, in order of first appearance; where
    the load has several classes, of each class as well."""
    raise NotImplementedError
