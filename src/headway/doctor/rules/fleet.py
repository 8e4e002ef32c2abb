"""Several engines: whether the work is spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def imbalance(windows: Sequence[Window]) -> Finding:
    """One engine has far more to do than another, or finds far more in its cache."""
    name = "imbalance"
    loads = [(load, window) for window in windows if (load := _load(window)) is not None]
    if len(loads) < 2:
        return unjudged(name, "needs two engines whose load is known")
    busiest, idlest = max(loads, key=_first), min(loads, key=_first)
    z = max(_z(busiest[0], idlest[0]), _z(busiest[1].num_requests, idlest[1].num_requests))
    rates = [rate for window in windows if (rate := _hit_rate(window)) is not None]
    spread = max(rates) - min(rates) if len(rates) > 1 else None
    figures = {
        "load_max": busiest[0],
        "load_min": idlest[0],
        "load_ratio": busiest[0] / idlest[0] if idlest[0] else None,
        "z": z,
        "hit_rate_spread": spread,
    }
    thresholds = {"load_ratio": LOAD_RATIO, "z": SIGNIFICANT_Z, "hit_rate_spread": HIT_RATE_SPREAD}
    what = (
        f"{amount(busiest[0])} requests running and waiting on {busiest[1].series.name}, "
        f"{amount(idlest[0])} on {idlest[1].series.name}"
    )
    if z >= SIGNIFICANT_Z and busiest[0] >= LOAD_RATIO * idlest[0]:
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


def _first(pair: tuple[float, Window]) -> float:
    return pair[0]


def _z(most: float, least: float) -> float:
    """Of requests, whether there at a moment or seen in the window, each of which comes to either
    engine alike where nothing is wrong: standard deviations from that, by the normal approximation
    of the binomial distribution."""
    return (most - least) / math.sqrt(most + least) if most + least else 0.0


def _load(window: Window) -> float | None:
    running = window.levels("num_requests_running")
    waiting = window.levels("num_requests_waiting")
    return None if running is None or waiting is None else running.mean + waiting.mean


def _hit_rate(window: Window) -> float | None:
    asked = window.increase("prefix_cache_queries") or 0.0
    return window.hit_rate() if asked >= LEAST_LOOKUP_TOKENS else None
