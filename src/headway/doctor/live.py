"""What `--watch` shows: each engine in lines that move, and below them what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from headway.doctor.diagnosis import diagnose
from headway.doctor.finding import Severity
from headway.doctor.readings import Window
from headway.doctor.report import verdict
from headway.doctor.rules.wording import amount, percent
from headway.doctor.series import Series

__all__ = ["live_lines", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_LABEL = 14
_FIGURE = 24


def live_lines(series: Sequence[Series], *, columns: int, rows: int) -> list[str]:
    """A frame of at most so many lines, none wider than the terminal."""
    lines = []
    for each in series:
        window = Window(each)
        lines.append(f"{each.name}, the last {window.duration_s:.0f} s")
        lines += _engine_lines(window, max(8, columns - _LABEL - _FIGURE))
        lines.append("")
    findings = diagnose(series)
    for finding in sorted(findings, key=lambda found: -found.severity):
        if finding.severity >= Severity.INFO:
            where = f" ({finding.source})" if finding.source and len(series) > 1 else ""
            lines.append(f"{finding.severity.name.lower():9} {finding.name}{where}: {finding.what}")
            lines += [f"{'':9} - {advice}" for advice in finding.advice[:1]]
    lines += ["", verdict(findings)]
    if len(lines) > rows:
        lines = [*lines[: rows - 1], verdict(findings)]
    return [line[:columns] for line in lines]


def _engine_lines(window: Window, width: int) -> Iterator[str]:
    def shown(value: float) -> str:
        return amount(round(value, 1))

    for label, metric, text in (
        ("running", "num_requests_running", shown),
        ("waiting", "num_requests_waiting", shown),
        ("KV used", "kv_cache_usage_perc", percent),
    ):
        levels = window.levels(metric)
        if levels is not None:
            ceiling = 1.0 if text is percent else levels.max
            yield _line(label, levels.values, text, width, ceiling)
    for label, metric in (
        ("requests/s", "request_success"),
        ("prompt tok/s", "prompt_tokens"),
        ("output tok/s", "generation_tokens"),
        ("preemptions/s", "num_preemptions"),
    ):
        rates = _rates(window.series, metric)
        if rates:
            yield _line(label, rates, shown, width, max(rates))


def _line(
    label: str,
    values: Sequence[float],
    text: Callable[[float], str],
    width: int,
    ceiling: float,
) -> str:
    figure = f"{text(values[-1])} (max {text(max(values))})"
    return f"  {label:{_LABEL}}{figure:{_FIGURE - 4}}{sparkline(values[-width:], ceiling)}"


def _rates(series: Series, metric: str) -> list[float]:
    """Per second, between each two samples."""
    found = []
    for pair in pairwise(series.samples):
        rate = Window(replace(series, samples=pair)).rate(metric)
        if rate is not None:
            found.append(rate)
    return found


def sparkline(values: Sequence[float], ceiling: float) -> str:
    """A bar for each value, from 0 to `ceiling`; nothing is a space."""
    if ceiling <= 0:
        return " " * len(values)
    return "".join(
        _BARS[min(len(_BARS) - 1, int(value / ceiling * len(_BARS)))] if value > 0 else " "
        for value in values
    )
