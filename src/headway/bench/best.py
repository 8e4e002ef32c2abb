"""The best point of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from headway.bench.cautions import failures, is_saturated, saturated_rounds
from headway.bench.comparison import Goal
from headway.bench.contrast import FIGURES, Figure, contrasts
from headway.bench.readings import by_variant, middle
from headway.bench.trials import Trial
from headway.bench.wording import number

__all__ = ["GOODPUT", "best_point"]

GOODPUT = Figure("request_goodput", "goodput", "1/s", True)


def best_point(trials: Sequence[Trial], goal: Goal) -> str:
    """In a few sentences, with the points that noise does not tell apart from it; of a best one
    that was saturated also which would be that was not, and of those named what failed."""
    figure = next(each for each in (*FIGURES, GOODPUT) if each.key == goal.figure)
    points = by_variant(trials)
    values = {
        name: middle([trial.result.get(figure.key) for trial in own]) or 0.0
        for name, own in points.items()
        if _within(own, goal.max_ttft_ms)
    }
    bound = (
        "" if goal.max_ttft_ms is None else f" with TTFT, p99 of {goal.max_ttft_ms:g} ms or less"
    )
    if not any(values.values()):
        return f"No point has any {figure.title}{bound}."
    best = _highest(values)
    same = _not_told_apart([trial for trial in trials if trial.variant in values], best, figure)
    shown = {name: _marked(name, points[name]) for name in (best, *same)}
    said = [f"Most {figure.title}{bound}: {shown[best]}, {number(values[best])} {figure.unit}."]
    if same:
        said.append(f"Not told apart from it: {'; '.join(shown[name] for name in same)}.")
    if is_saturated(points[best]):
        said.append(_without_saturated(points, values, figure))
    said += [
        f"Of {name}, {failed}: latencies are of the others."
        for name in shown
        if (failed := failures(points[name]))
    ]
    return " ".join(said)


def _within(trials: Sequence[Trial], max_ttft_ms: float | None) -> bool:
    """Where a round has no TTFT, nobody knows."""
    if max_ttft_ms is None:
        return True
    ttfts = [trial.result.get("p99_ttft_ms") for trial in trials]
    found = [each for each in ttfts if each is not None]
    return len(found) == len(ttfts) and median(found) <= max_ttft_ms


def _highest(values: Mapping[str, float]) -> str:
    return max(values, key=lambda name: values[name])


def _not_told_apart(trials: Sequence[Trial], best: str, figure: Figure) -> list[str]:
    return [
        change.variant
        for change in contrasts(trials, best, figures=[figure])
        if change.class_name is None and change.verdict in ("noise", "unclear")
    ]


def _marked(name: str, trials: Sequence[Trial]) -> str:
    return f"{name} (saturated in {saturated_rounds(trials)})" if is_saturated(trials) else name


def _without_saturated(
    points: Mapping[str, Sequence[Trial]], values: Mapping[str, float], figure: Figure
) -> str:
    kept = {name: value for name, value in values.items() if not is_saturated(points[name])}
    if not any(kept.values()):
        return "Every such point was saturated."
    best = _highest(kept)
    return f"Most of those that were not saturated: {best}, {number(kept[best])} {figure.unit}."
