"""Judges' tools: whether a figure moved as a claim has it, beyond what is noise.

A claim names a least factor. It is shown where the measured factor reaches it and the interval
of 95 % excludes that nothing moved; it is not shown where the interval stays below the factor; all
else is unclear, and more rounds would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from headway.bench.contrast import FIGURES, Change, Figure, contrasts
from headway.bench.experiments.experiment import Finding, Verdict
from headway.bench.trials import Trial
from headway.bench.wording import number

__all__ = [
    "ENOUGH_ROUNDS",
    "ITL",
    "ITL_LONGEST",
    "OUTPUT",
    "TTFT",
    "TTFT_P90",
    "TTFT_P99",
    "Part",
    "counter_of",
    "figure_of",
    "finding",
    "growth",
    "holds",
    "moves",
    "points",
    "rises",
    "with_figure",
]

_BY_KEY = {figure.key: figure for figure in FIGURES}
OUTPUT = _BY_KEY["output_throughput"]
TTFT = _BY_KEY["median_ttft_ms"]
TTFT_P90 = Figure("p90_ttft_ms", "TTFT, p90", "ms", False)
TTFT_P99 = _BY_KEY["p99_ttft_ms"]
ITL = _BY_KEY["p99_itl_ms"]
ITL_LONGEST = Figure("p99.9_itl_ms", "ITL, p99.9", "ms", False)
"""Where few gaps are stalls."""

ENOUGH_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One comparison of those that a finding rests on."""

    verdict: Verdict
    evidence: str


def finding(claim: str, *parts: Part, otherwise: str) -> Finding:
    """Shown where all parts are, not shown where one is not.

    Args:
        claim: one sentence.
        parts: at least one.
        otherwise: why it does not hold here, where it does not.
    """
    worst_first: tuple[Verdict, ...] = ("not shown", "unclear", "shown")
    verdict = min((part.verdict for part in parts), key=worst_first.index)
    evidence = "; ".join(part.evidence for part in parts) + "."
    if verdict == "not shown":
        evidence += f" {otherwise}"
    return Finding(claim, verdict, evidence)


def moves(
    trials: Sequence[Trial],
    figure: Figure,
    direction: Literal["higher", "lower"],
    *,
    of: str,
    against: str,
    least: float = 1.1,
    class_name: str | None = None,
) -> Part:
    """That `figure` of the variant `of` is by the factor `least` higher, or lower, than that of
    `against`, for requests of a class; None: for all."""
    change = _change(trials, figure, of, against, class_name)
    evidence = _evidence(change, figure, of, against, class_name)
    if change is None or change.ratio is None or change.low is None or change.high is None:
        return Part("unclear", evidence)
    ratio, low, high = change.ratio, change.low, change.high
    if direction == "lower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    if ratio >= least and low > 1:
        return Part("shown", evidence)
    return Part("not shown" if high < least else "unclear", evidence)


def holds(
    trials: Sequence[Trial],
    figure: Figure,
    *,
    of: str,
    against: str,
    within: float = 1.1,
    class_name: str | None = None,
) -> Part:
    """That `figure` of `of` is not worse by the factor `within` (non-inferiority): shown where the
    interval of how much worse it is stays below that, not shown where `moves` shows that it is
    worse by so much, else unclear."""
    worse: Literal["higher", "lower"] = "lower" if figure.higher_is_better else "higher"
    part = moves(trials, figure, worse, of=of, against=against, least=within, class_name=class_name)
    swapped: dict[Verdict, Verdict] = {"shown": "not shown", "not shown": "shown"}
    return Part(swapped.get(part.verdict, "unclear"), part.evidence)


def rises(
    trials: Sequence[Trial],
    counter: str,
    *,
    of: str,
    against: str,
    least: float = 1.25,
    title: str,
) -> Part:
    """That a counter rose in `of` by the factor `least` more than in `against`: as `moves` has it,
    or, where it did not rise in `against` in a round and there is no ratio, in every round."""
    high, low = growth(trials, of, counter), growth(trials, against, counter)
    evidence = f"{title}: {of} {_spread(high)}, {against} {_spread(low)}"
    common = sorted(high.keys() & low.keys())
    if len(common) < ENOUGH_ROUNDS:
        return Part("unclear", f"{evidence} (too few rounds)")
    if all(high[each] > 0 and low[each] > 0 for each in common):
        figure = Figure(counter, title, "", False)
        read = with_figure(trials, counter, counter_of(counter))
        return moves(read, figure, "higher", of=of, against=against, least=least)
    if all(high[each] > 0 and high[each] >= least * low[each] for each in common):
        return Part("shown", evidence)
    middle_high, middle_low = (median(found[each] for each in common) for found in (high, low))
    stays = middle_high == 0 or middle_high < least * middle_low
    return Part("not shown" if stays else "unclear", evidence)


def growth(trials: Sequence[Trial], variant: str, counter: str) -> dict[int, float]:
    """What the counter rose by, for each round; one that the server does not have did not rise."""
    return {
        trial.round: trial.counters.get(counter, 0.0)
        for trial in trials
        if trial.variant == variant
    }


def with_figure(
    trials: Sequence[Trial], key: str, read: Callable[[Trial], float | None]
) -> list[Trial]:
    """Trials whose result has one figure more, for `moves`."""
    return [replace(trial, result={**trial.result, key: read(trial)}) for trial in trials]


def points(
    trials: Sequence[Trial], xs: dict[str, float], read: Callable[[Trial], float | None]
) -> list[tuple[float, float]]:
    """For `plots.lines`: a point for each trial of the variants that `xs` gives an x."""
    found = [(xs[each.variant], read(each)) for each in trials if each.variant in xs]
    return [(x, y) for x, y in found if y is not None]


def figure_of(figure: Figure) -> Callable[[Trial], float | None]:
    """Reads it from a trial, for `points`."""
    return lambda trial: trial.result.get(figure.key)


def counter_of(name: str) -> Callable[[Trial], float | None]:
    """The same of a counter; one that the server does not have did not rise."""
    return lambda trial: trial.counters.get(name, 0.0)


def _change(
    trials: Sequence[Trial], figure: Figure, of: str, against: str, class_name: str | None
) -> Change | None:
    two = [trial for trial in trials if trial.variant in (of, against)]
    for change in contrasts(two, against, figures=(figure,)):
        if change.class_name == class_name:
            return change
    return None


def _evidence(
    change: Change | None, figure: Figure, of: str, against: str, class_name: str | None
) -> str:
    title = figure.title if class_name is None else f"{figure.title}, {class_name}"
    if change is None or change.value is None or change.baseline is None:
        return f"{title}: nothing to compare"
    unit = figure.unit and f" {figure.unit}"
    text = f"{title}: {of} {number(change.value)}{unit}, {against} {number(change.baseline)}{unit}"
    if change.ratio is None:
        return text
    if change.low is None or change.high is None:
        return f"{text} ({change.ratio:.2f} times; too few rounds for an interval)"
    return f"{text} ({change.ratio:.2f} times, 95 %: {change.low:.2f} to {change.high:.2f})"


def _spread(values: dict[int, float]) -> str:
    if not values:
        return "–"
    low, high = min(values.values()), max(values.values())
    return number(low) if low == high else f"{number(low)} to {number(high)}"
