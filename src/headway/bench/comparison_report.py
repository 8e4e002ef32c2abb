"""What a comparison or a sweep came to, as rows of text and as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headway.bench.best import GOODPUT, best_point
from headway.bench.cautions import cautions, failures_beside, saturated_rounds
from headway.bench.comparison import Comparison
from headway.bench.contrast import FIGURES, Change, contrasts
from headway.bench.page import Page
from headway.bench.plots import latency_cdf, lines, throughput_latency, timeline
from headway.bench.readings import by_variant, hit_rate, middle, typical
from headway.bench.trials import Trial
from headway.bench.wording import loads_told, number, percent

__all__ = [
    "CHANGE_HEADER",
    "by_chance",
    "change_rows",
    "counter_table",
    "make_page",
    "moved",
    "point_table",
]

CHANGE_HEADER = ("", "baseline", "variant", "change", "95 % interval", "verdict")


def change_rows(changes: Sequence[Change]) -> list[list[str]]:
    """By `CHANGE_HEADER`, a row a figure."""
    return [
        [
            _title(change),
            number(change.baseline),
            number(change.value),
            percent(change.ratio),
            "–" if change.low is None else f"{percent(change.low)} … {percent(change.high)}",
            change.verdict,
        ]
        for change in changes
    ]


def moved(changes: Sequence[Change], trials: Sequence[Trial], baseline: str) -> str:
    """In a sentence what of one variant's figures moved more than noise; in another how many of its
    requests are in none of them."""
    failed = failures_beside(trials, changes[0].variant, baseline)
    return " ".join(filter(None, [_moved(changes), failed]))


def _moved(changes: Sequence[Change]) -> str:
    told = [
        f"{_title(change)} {percent(change.ratio)} ({change.verdict})"
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


def _hit_percent(trial: Trial) -> float | None:
    rate = hit_rate(trial)
    return None if rate is None else rate * 100


_COUNTERS: Sequence[tuple[str, Callable[[Trial], float | None]]] = (
    ("failed", lambda trial: trial.result.get("failed")),
    ("preemptions", lambda trial: trial.counters.get("num_preemptions_total")),
    ("evictions", lambda trial: trial.counters.get("kv_cache_evictions_total")),
    ("prefix hits (%)", _hit_percent),
    ("most running", lambda trial: max((each.running for each in trial.samples), default=None)),
    ("most waiting", lambda trial: max((each.waiting for each in trial.samples), default=None)),
    (
        "most KV held (%)",
        lambda trial: max((each.kv_usage * 100 for each in trial.samples), default=None),
    ),
)
"""What a server did meanwhile."""


def counter_table(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """Header, and a row a variant: in how many of its rounds it was given more than it can do, and
    the median over them of what its server did."""
    rows = [
        [
            name,
            saturated_rounds(own),
            *(number(middle([read(trial) for trial in own])) for _, read in _COUNTERS),
        ]
        for name, own in by_variant(trials).items()
    ]
    return ["", "saturated rounds", *(title for title, _ in _COUNTERS)], rows


def point_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header, and a row a variant: its figures' medians over the rounds."""
    goal = comparison.goal
    figures = (*((GOODPUT,) if goal and goal.figure == GOODPUT.key else ()), *FIGURES)
    rows = [
        [
            name,
            *(number(middle([trial.result.get(each.key) for trial in own])) for each in figures),
        ]
        for name, own in by_variant(comparison.trials).items()
    ]
    return ["", *(f"{each.title} ({each.unit})" for each in figures)], rows


def make_page(comparison: Comparison) -> Page:
    """All of it on one page. `check_plots` was called before."""
    page = Page("Headway: a comparison" if comparison.baseline else "Headway: a sweep")
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds"
    page.text(
        f"Measured {comparison.date} with Headway {comparison.version} on {comparison.machine}, "
        f"{rounds}.",
        comparison.command,
        *cautions(comparison.trials),
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
        ["variant", "headway serve", "model"],
        [
            [name, " ".join(own) or "(defaults)", _model(comparison.trials, name)]
            for name, own in comparison.options.items()
        ],
    )
    loads = comparison.workloads.items()
    page.text(*loads_told({name: msgspec.json.encode(load).decode() for name, load in loads}))
    return page


def _model(trials: Sequence[Trial], variant: str) -> str:
    return next((each.model for each in trials if each.variant == variant), "") or "–"


def _add_changes(page: Page, comparison: Comparison, baseline: str) -> None:
    changes = contrasts(comparison.trials, baseline)
    for variant in dict.fromkeys(change.variant for change in changes):
        own = [change for change in changes if change.variant == variant]
        page.heading(f"{variant}, beside {baseline}")
        page.text(moved(own, comparison.trials, baseline))
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
    for name, own in by_variant(comparison.trials).items():
        x = middle([trial.result.get("output_throughput") for trial in own])
        y = middle([trial.result.get("p99_ttft_ms") for trial in own])
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
    for name, own in by_variant(trials).items():
        trial = typical(own, name)
        page.plot(timeline(trial), f"{name}, round {trial.round + 1}: its median by throughput.")


def _title(change: Change) -> str:
    of = "" if change.class_name is None else f"{change.class_name}: "
    return f"{of}{change.figure.title} ({change.figure.unit})"
