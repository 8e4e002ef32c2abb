"""Plots as SVG, for `Page`. Drawn with matplotlib (`pip install 'headway[report]'`).

Lines and letters are of the page's own colour, so that a plot is read in the dark too. Variants
have the colours of Okabe and Ito (Color Universal Design, 2008), which all eyes tell apart, by
order of their first appearance; from the seventh on another dash as well.
"""

from __future__ import annotations

import importlib
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from headway.bench.contrast import FIGURES
from headway.bench.trials import Trial
from headway.errors import InvalidConfig

__all__ = ["check_plots", "latency_cdf", "lines", "throughput_latency", "timeline"]

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_DASHES = ("-", "--", ":", "-.")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
_CURVE_POINTS = 200
"""Of a distribution: more cannot be seen."""
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headway",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "system-ui", "Verdana"],
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#888888",
    "grid.alpha": 0.25,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
}
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


def check_plots(option: str) -> None:
    """To be called before anything is measured. Raises InvalidConfig, naming the option that asks
    for a page, that says what to install where matplotlib is missing."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise InvalidConfig(
            option, "a page needs matplotlib; pip install 'headway[report]' brings it"
        ) from None


def latency_cdf(
    trials: Sequence[Trial], *, metric: str = "ttft", class_name: str | None = None
) -> str:
    """Share of requests by latency, a curve a variant, its rounds pooled; `metric` is ttft, tpot,
    itl or e2el."""
    styles = _styles(trial.variant for trial in trials)
    pooled: dict[str, list[float]] = {name: [] for name in styles}
    for trial in trials:
        pooled[trial.variant] += _latencies(trial.details, metric, class_name)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, values in pooled.items():
            if values:
                shares = np.linspace(0, 1, max(2, min(len(values), _CURVE_POINTS)))
                style = {"color": styles[name]["color"], "linestyle": styles[name]["linestyle"]}
                milliseconds = np.quantile(values, shares) * 1e3
                axes.plot(milliseconds, shares * 100, label=name, **style)
        of = "gaps" if metric == "itl" else "requests"
        axes.set(xlabel=f"{_LATENCIES[metric]} (ms)", ylabel=f"share of {of} (%)", ylim=(0, 101))
        _tell_names(axes)

    return _drawn(draw)


def throughput_latency(trials: Sequence[Trial], *, latency_key: str = "median_ttft_ms") -> str:
    """A point a trial, a colour a variant: output tokens a second, and the latency."""
    styles = _styles(trial.variant for trial in trials)
    title = next((f"{each.title} (ms)" for each in FIGURES if each.key == latency_key), latency_key)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        everywhere: list[tuple[float, float]] = []
        for name, style in styles.items():
            points = [
                (trial.result["output_throughput"], trial.result[latency_key])
                for trial in trials
                if trial.variant == name and trial.result.get(latency_key) is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                look = {**style, "linestyle": "none"}
                axes.plot(x, y, label=name, **look)
                everywhere += points
        axes.set(xlabel="output throughput (tok/s)", ylabel=title)
        axes.set_xlim(0, _above(x for x, _ in everywhere))
        axes.set_ylim(0, _above(y for _, y in everywhere))
        _tell_names(axes)

    return _drawn(draw)


def timeline(trial: Trial) -> str:
    """Running and waiting, KV usage, preemptions, over the trial's seconds, below each other."""
    times = [sample.at_s for sample in trial.samples]
    panels: tuple[tuple[str, Mapping[str, Sequence[float]], bool], ...] = (
        (
            "requests",
            {
                "running": [sample.running for sample in trial.samples],
                "waiting": [sample.waiting for sample in trial.samples],
            },
            True,
        ),
        ("KV blocks held (%)", {"": [sample.kv_usage * 100 for sample in trial.samples]}, False),
        ("preemptions so far", {"": [sample.preemptions for sample in trial.samples]}, True),
    )

    def draw(figure: Any) -> None:
        columns = figure.subplots(len(panels), sharex=True)
        for axes, (label, series, whole) in zip(columns, panels, strict=True):
            # Colours are variants'; here is but one.
            for (name, values), dash in zip(series.items(), _DASHES, strict=False):
                look = {"color": _INK, "linestyle": dash, "drawstyle": "steps-post"}
                axes.plot(times, values, label=name or None, **look)
            axes.set_ylabel(label)
            axes.set_ylim(0, _above(value for values in series.values() for value in values))
            axes.yaxis.get_major_locator().set_params(integer=whole)
            _tell_names(axes)
        columns[-1].set_xlabel("time since the load began (s)")

    return _drawn(draw, height=6.0)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Points (x, y) joined in order of x, a line with marks for each name. Several points of equal
    x show their median, and their range as a bar."""
    styles = _styles(series)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, points in series.items():
            by_x: defaultdict[float, list[float]] = defaultdict(list)
            for x, y in points:
                by_x[x].append(y)
            xs = sorted(by_x)
            middles = [median(by_x[x]) for x in xs]
            below = [middle - min(by_x[x]) for x, middle in zip(xs, middles, strict=True)]
            above = [max(by_x[x]) - middle for x, middle in zip(xs, middles, strict=True)]
            axes.errorbar(xs, middles, yerr=(below, above), capsize=3, label=name, **styles[name])
        axes.set(xlabel=x_label, ylabel=y_label)
        if log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        _tell_names(axes)

    return _drawn(draw)


def _latencies(details: Mapping[str, Any], metric: str, class_name: str | None) -> list[float]:
    """Seconds, of the requests that completed."""
    found: list[float] = []
    for index, name in enumerate(details["class_names"]):
        ttft, e2el = details["ttfts"][index], details["latencies"][index]
        if ttft is None or (class_name is not None and name != class_name):
            continue
        more = details["output_lens"][index] - 1
        match metric:
            case "ttft":
                found.append(ttft)
            case "e2el":
                found.append(e2el)
            case "itl":
                found += details["itls"][index]
            case "tpot" if more > 0:
                found.append((e2el - ttft) / more)
    return found


def _styles(names: Any) -> dict[str, dict[str, Any]]:
    """Of each name, the same in all plots of the same trials."""
    return {
        name: {
            "color": _COLOURS[index % len(_COLOURS)],
            "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)],
            "marker": _MARKS[index % len(_MARKS)],
            "markersize": 5,
        }
        for index, name in enumerate(dict.fromkeys(names))
    }


def _above(values: Iterable[float]) -> float:
    """Where an axis from 0 on ends, so that no mark is cut; 1 where all are 0."""
    return 1.05 * max(values, default=0.0) or 1.0


def _tell_names(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=9)


def _drawn(draw: Any, *, height: float = 3.6) -> str:
    """What `draw` puts on a figure. No state of matplotlib's is left changed."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    text = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(7.6, height), layout="constrained")
        draw(figure)
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _inlined(text.getvalue())


_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
_ID = re.compile(r' id="([^"]*)"')


def _inlined(svg: str) -> str:
    """For a page with other plots: without a document's head, sizes of its own, or names that
    nothing refers to, which would be there twice."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg, count=1)
    used = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda found: found[0] if found[1] in used else "", svg)
    return svg.replace(_INK, "currentColor").strip()
