"""Several engines: whether the work is spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from headway.doctor.finding import Finding, Severity, fine, unjudged
from headway.doctor.readings import Window
from headway.doctor.rules.memory import LEAST_LOOKUP_TOKENS
from headway.doctor.rules.wording import amount, percent

__all__ = ["imbalance"]

LOAD_RATIO = 2.0
"""The busiest engine's requests, in those of the idlest."""
SIGNIFICANT_Z = 3.0
"""Standard deviations from requests that are dealt out by chance."""
HIT_RATE_SPREAD = 0.3


class _Load(NamedTuple):
    """Of one engine. The order is that of how busy they are."""

    present: float
    """Requests running and waiting, the mean of the samples."""
    in_all: float
    """Requests of the window, those among them that came and went between two samples."""
    source: str


def imbalance(windows: Sequence[Window]) -> Finding:
    """One engine has far more to do than another, or finds far more in its cache."""
    name = "imbalance"
    loads = [load for window in windows if (load := _load(window)) is not None]
    if len(loads) < 2:
        return unjudged(name, "needs two engines whose load is known")
    busiest, idlest = max(loads), min(loads)
    pairs = ((busiest.present, idlest.present), (busiest.in_all, idlest.in_all))
    rates = [rate for window in windows if (rate := _hit_rate(window)) is not None]
    spread = max(rates) - min(rates) if len(rates) > 1 else None
    figures = {
        "load_max": busiest.present,
        "load_min": idlest.present,
        "load_ratio": busiest.present / idlest.present if idlest.present else None,
        "num_requests_max": busiest.in_all,
        "num_requests_min": idlest.in_all,
        "z": max(_z(*pair) for pair in pairs),
        "hit_rate_spread": spread,
    }
    thresholds = {"load_ratio": LOAD_RATIO, "z": SIGNIFICANT_Z, "hit_rate_spread": HIT_RATE_SPREAD}
    what = (
        f"{amount(busiest.present)} requests running and waiting on {busiest.source}, "
        f"{amount(idlest.present)} on {idlest.source}; in all {amount(busiest.in_all)} and "
        f"{amount(idlest.in_all)}"
    )
    if _twice(*pairs[0]) and any(_twice(*pair) and _z(*pair) >= SIGNIFICANT_Z for pair in pairs):
        return Finding(
            name=name,
            severity=Severity.WARNING,
            what=what,
            cause="the router does not heed how busy the engines are, or one prefix is asked for "
            "far more than others",
            advice=(
                "route by the number of running and waiting requests, and by prefix only among "
                "engines that are about as busy",
            ),
            figures=figures,
            thresholds=thresholds,
        )
    if spread is not None and spread >= HIT_RATE_SPREAD:
        return Finding(
            name=name,
            severity=Severity.INFO,
            what=f"prefix hit rates from {percent(min(rates))} to {percent(max(rates))}",
            cause="requests with common prefixes do not all go to the same engine",
            advice=("route by prefix",),
            figures=figures,
            thresholds=thresholds,
        )
    return fine(name, what, figures, thresholds)


def _twice(most: float, least: float) -> bool:
    """Also where neither has any."""
    return most >= LOAD_RATIO * least


def _z(most: float, least: float) -> float:
    """Of requests, whether there at a moment or seen in the window, each of which comes to either
    engine alike where nothing is wrong: standard deviations from that, by the normal approximation
    of the binomial distribution."""
    return (most - least) / math.sqrt(most + least) if most + least else 0.0


def _load(window: Window) -> _Load | None:
    running = window.levels("num_requests_running")
    waiting = window.levels("num_requests_waiting")
    if running is None or waiting is None:
        return None
    return _Load(running.mean + waiting.mean, window.num_requests, window.series.name)


def _hit_rate(window: Window) -> float | None:
    asked = window.increase("prefix_cache_queries") or 0.0
    return window.hit_rate() if asked >= LEAST_LOOKUP_TOKENS else None
