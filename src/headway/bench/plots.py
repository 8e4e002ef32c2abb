"""Plots as SVG, for `Page`. Drawn with matplotlib (`pip install 'headway[report]'`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.bench.trials import Trial

__all__ = ["check_plots", "latency_cdf", "lines", "throughput_latency", "timeline"]


def check_plots() -> None:
    """To be called before anything is measured. Raises InvalidConfig (`output_html`) that says what to
    install where matplotlib is missing."""
    raise NotImplementedError


def latency_cdf(
    trials: Sequence[Trial], *, metric: str = "ttft", class_name: str | None = None
) -> str:
    """Share of requests by latency, a curve a variant, its rounds pooled; `metric` is ttft, tpot, itl or e2el."""
    raise NotImplementedError


def throughput_latency(trials: Sequence[Trial], *, latency_key: str = "median_ttft_ms") -> str:
    """A point a trial, a colour a variant: output tokens a second, and the latency."""
    raise NotImplementedError


def timeline(trial: Trial) -> str:
    """Running and waiting, KV usage, preemptions, over the trial's seconds, below each other."""
    raise NotImplementedError


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Points (x, y) joined in order of x, a line with marks for each name. Several points of equal x
    show their median, and their range as a bar."""
    raise NotImplementedError
