"""What moved between a baseline and a variant, by how much, and whether that is more than noise.

Trials of one round met the same load at about the same time, so each round gives one ratio of
variant to baseline. The interval is Student's t over the logarithms of these ratios, 95 %.

Each figure is judged by itself: where nothing changed, one in twenty looks moved by chance, and a
report must say so. To correct for their number (Holm) would be of little use: figures of one load
move together, and with the five rounds that people have time for it would hide real changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Literal

from headway.bench.trials import Trial

__all__ = ["FIGURES", "Change", "Figure", "Verdict", "contrasts"]

Verdict = Literal["better", "worse", "noise", "unclear"]
"""`noise`: the interval holds 1; `unclear`: there are too few rounds for an interval, or a figure
is 0 or missing in some."""


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
    the load has several classes, of each class as well, after those of all."""
    variants = list(dict.fromkeys(trial.variant for trial in trials))
    classes = dict.fromkeys(name for trial in trials for name in trial.result.get("classes", ()))
    return [
        _change(trials, baseline, variant, class_name, figure)
        for variant in variants
        if variant != baseline
        for class_name in (None, *classes)
        for figure in figures
    ]


_MIN_ROUNDS = 3
"""For an interval: that of two rounds is 13 standard errors wide to either side."""


def _change(
    trials: Sequence[Trial], baseline: str, variant: str, class_name: str | None, figure: Figure
) -> Change:
    before, after = (_values(trials, name, class_name, figure) for name in (baseline, variant))
    rounds = before.keys() | after.keys()
    pairs = [(before.get(index), after.get(index)) for index in rounds]
    logs = [math.log(value / other) for other, value in pairs if other and value]
    whole = len(logs) == len(rounds) >= _MIN_ROUNDS
    low, high = _interval(logs) if whole else (None, None)
    return Change(
        variant=variant,
        class_name=class_name,
        figure=figure,
        baseline=_median(before),
        value=_median(after),
        ratio=math.exp(mean(logs)) if logs else None,
        low=low,
        high=high,
        verdict=_verdict(low, high, figure.higher_is_better),
    )


def _values(
    trials: Sequence[Trial], variant: str, class_name: str | None, figure: Figure
) -> dict[int, float | None]:
    """By round."""
    found: dict[int, float | None] = {}
    for trial in trials:
        if trial.variant == variant:
            classes = trial.result.get("classes", {})
            result = trial.result if class_name is None else classes.get(class_name, {})
            found[trial.round] = result.get(figure.key)
    return found


def _median(values: Mapping[int, float | None]) -> float | None:
    there = [value for value in values.values() if value is not None]
    return median(there) if there else None


def _interval(logs: Sequence[float]) -> tuple[float, float]:
    """Of the ratio."""
    middle = mean(logs)
    half = _quantile(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle - half), math.exp(middle + half)


def _verdict(low: float | None, high: float | None, higher_is_better: bool) -> Verdict:
    if low is None or high is None:
        return "unclear"
    if low <= 1 <= high:
        return "noise"
    return "better" if (low > 1) == higher_is_better else "worse"


_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""0.975 quantiles of Student's t for 1, 2, … degrees of freedom (NIST/SEMATECH e-Handbook of
Statistical Methods, 1.3.6.7.2)."""


def _quantile(freedom: int) -> float:
    """For more degrees than the table has, its last, which is slightly too wide."""
    return _QUANTILES[min(freedom, len(_QUANTILES)) - 1]
