"""What a comparison or a sweep came to, as rows of text and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median, median_low

import msgspec

from headway.bench.comparison import Comparison, Goal
from headway.bench.contrast import FIGURES, Change, Figure, contrasts
from headway.bench.page import Page
from headway.bench.plots import latency_cdf, lines, throughput_latency, timeline
from headway.bench.trials import Trial

__all__ = [
    "CHANGE_HEADER",
    "best_point",
    "by_chance",
    "change_rows",
    "counter_table",
    "make_page",
    "moved",
    "point_table",
]

CHANGE_HEADER = ("", "baseline", "variant", "change", "95 % interval", "verdict")
_GOODPUT = Figure("request_goodput", "goodput", "1/s", True)


def change_rows(changes: Sequence[Change]) -> list[list[str]]:
    """By `CHANGE_HEADER`, a row a figure."""
    return [
        [
            _title(change),
            _number(change.baseline),
            _number(change.value),
            _percent(change.ratio),
            "–" if change.low is None else f"{_percent(change.low)} … {_percent(change.high)}",
            change.verdict,
        ]
        for change in changes
    ]


def moved(changes: Sequence[Change]) -> str:
    """In a sentence what moved more than noise."""
    told = [
        f"{_title(change)} {_percent(change.ratio)} ({change.verdict})"
        for change in changes
        if change.verdict in ("better", "worse")
    ]
    if told:
        return f"Moved: {'; '.join(told)}."
    if all(change.verdict == "unclear" for change in changes):
        return "Unclear: an interval takes three rounds, and a figure above 0 in each."
    return "Nothing moved by more than noise."


def by_chance(changes: Sequence[Change]) -> str | None:
    """How many verdicts to expect where nothing changed; None: not one in all."""
    judged = sum(change.verdict != "unclear" for change in changes)
    if judged < 10:
        return None
    return (
        f"Of {judged} rows about {judged / 20:.0f} would look moved by chance if nothing had "
        "changed: trust what is large, or moves in several rows, or again when repeated."
    )


_COUNTERS: Sequence[tuple[str, Callable[[Trial], float | None]]] = (
    ("failed", lambda trial: trial.result.get("failed")),
    ("preemptions", lambda trial: trial.counters.get("num_preemptions_total")),
    ("evictions", lambda trial: trial.counters.get("kv_cache_evictions_total")),
    ("prefix hits (%)", lambda trial: _hit_rate(trial.counters)),
    ("most running", lambda trial: max((each.running for each in trial.samples), default=None)),
    ("most waiting", lambda trial: max((each.waiting for each in trial.samples), default=None)),
    (
        "most KV held (%)",
        lambda trial: max((each.kv_usage * 100 for each in trial.samples), default=None),
    ),
)
"""What a server did meanwhile."""


def counter_table(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """Header, and a row a variant: the median over its rounds of what its server did."""
    rows = [
        [name, *(_number(_middle([read(trial) for trial in own])) for _, read in _COUNTERS)]
        for name, own in _by_variant(trials).items()
    ]
    return ["", *(title for title, _ in _COUNTERS)], rows


def point_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header, and a row a variant: its figures' medians over the rounds."""
    goal = comparison.goal
    figures = (*((_GOODPUT,) if goal and goal.figure == _GOODPUT.key else ()), *FIGURES)
    rows = [
        [
            name,
            *(_number(_middle([trial.result.get(each.key) for trial in own])) for each in figures),
        ]
        for name, own in _by_variant(comparison.trials).items()
    ]
    return ["", *(f"{each.title} ({each.unit})" for each in figures)], rows


def best_point(trials: Sequence[Trial], goal: Goal) -> str:
    """In a sentence or two, with the points that noise does not tell apart from it."""
    figure = next(each for each in (*FIGURES, _GOODPUT) if each.key == goal.figure)
    points = _by_variant(trials)
    values = {
        name: _middle([trial.result.get(figure.key) for trial in own]) or 0.0
        for name, own in points.items()
        if _within(own, goal.max_ttft_ms)
    }
    bound = (
        "" if goal.max_ttft_ms is None else f" with TTFT, p99 of {goal.max_ttft_ms:g} ms or less"
    )
    if not any(values.values()):
        return f"No point has any {figure.title}{bound}."
    best = max(values, key=lambda name: values[name])
    others = contrasts(
        [trial for trial in trials if trial.variant in values], best, figures=[figure]
    )
    same = [
        change.variant
        for change in others
        if change.class_name is None and change.verdict in ("noise", "unclear")
    ]
    found = f"Most {figure.title}{bound}: {best}, {_number(values[best])} {figure.unit}."
    if same:
        found += f" Not told apart from it: {'; '.join(same)}."
    return found


def make_page(comparison: Comparison) -> Page:
    """All of it on one page. `check_plots` was called before."""
    page = Page("Headway: a comparison" if comparison.baseline else "Headway: a sweep")
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds"
    page.text(
        f"Measured {comparison.date} with Headway {comparison.version} on {comparison.machine}, "
        f"{rounds}.",
        comparison.command,
    )
    if comparison.baseline is None:
        _add_sweep(page, comparison)
    else:
        _add_changes(page, comparison, comparison.baseline)
    page.heading("What the servers did")
    page.text("Medians over the rounds.")
    page.table(*counter_table(comparison.trials))
    _add_plots(page, comparison)
    page.heading("How it was run")
    page.table(
        ["variant", "headway serve"],
        [[name, " ".join(own) or "(defaults)"] for name, own in comparison.options.items()],
    )
    page.text(f"The load: {msgspec.json.encode(comparison.workload).decode()}")
    return page


def _add_changes(page: Page, comparison: Comparison, baseline: str) -> None:
    changes = contrasts(comparison.trials, baseline)
    for variant in dict.fromkeys(change.variant for change in changes):
        own = [change for change in changes if change.variant == variant]
        page.heading(f"{variant}, beside {baseline}")
        page.text(moved(own))
        page.table(CHANGE_HEADER, change_rows(own))
    page.text(
        "Baseline and variant are medians over the rounds; the change is the geometric mean of the "
        "rounds' ratios, with its interval by Student's t.",
        *filter(None, [by_chance(changes)]),
    )


def _add_sweep(page: Page, comparison: Comparison) -> None:
    page.heading("Points")
    if comparison.goal is not None:
        page.text(best_point(comparison.trials, comparison.goal))
    page.table(*point_table(comparison))
    page.plot(
        lines(_curves(comparison), x_label="output throughput (tok/s)", y_label="TTFT, p99 (ms)"),
        "Throughput against latency: a line for each way to run the server, a mark for each load.",
    )


def _curves(comparison: Comparison) -> dict[str, list[tuple[float, float]]]:
    """Medians of the points, by the server's options; those of one curve differ in their load."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, own in _by_variant(comparison.trials).items():
        x = _middle([trial.result.get("output_throughput") for trial in own])
        y = _middle([trial.result.get("p99_ttft_ms") for trial in own])
        if x is not None and y is not None:
            options = " ".join(comparison.options[name]) or "defaults"
            curves.setdefault(options, []).append((x, y))
    return curves


def _add_plots(page: Page, comparison: Comparison) -> None:
    trials = comparison.trials
    page.heading("Latencies")
    for metric, title in (
        ("ttft", "time to first token"),
        ("tpot", "time per output token after the first, of each request"),
        ("itl", "gaps between tokens"),
        ("e2el", "end-to-end latency"),
    ):
        page.plot(latency_cdf(trials, metric=metric), f"Distribution, all rounds: {title}.")
    if comparison.baseline is not None:
        page.heading("Throughput against latency")
        page.plot(throughput_latency(trials), "A mark for each trial.")
    page.heading("The servers over time")
    for name, own in _by_variant(trials).items():
        trial = _median_trial(own)
        page.plot(timeline(trial), f"{name}, round {trial.round + 1}: its median by throughput.")


def _median_trial(trials: Sequence[Trial]) -> Trial:
    """That of the median output throughput; of two in the middle the lower."""
    middle = median_low(trial.result["output_throughput"] for trial in trials)
    return next(trial for trial in trials if trial.result["output_throughput"] == middle)


def _by_variant(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.variant, []).append(trial)
    return found


def _within(trials: Sequence[Trial], max_ttft_ms: float | None) -> bool:
    ttft = _middle([trial.result.get("p99_ttft_ms") for trial in trials])
    return max_ttft_ms is None or (ttft is not None and ttft <= max_ttft_ms)


def _hit_rate(counters: Mapping[str, float]) -> float | None:
    asked = counters.get("prefix_cache_queries_total", 0.0)
    return counters.get("prefix_cache_hits_total", 0.0) / asked * 100 if asked else None


def _middle(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None


def _title(change: Change) -> str:
    of = "" if change.class_name is None else f"{change.class_name}: "
    return f"{of}{change.figure.title} ({change.figure.unit})"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{(ratio - 1) * 100:+.1f} %".replace("-", "−")
