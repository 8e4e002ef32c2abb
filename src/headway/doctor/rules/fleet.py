"""Several engines: whether the work is spread."""

from __future__ import annotations

from collections.abc import Sequence

from headway.doctor.finding import Finding, Severity, fine, unjudged
from headway.doctor.readings import Window
from headway.doctor.rules.memory import LEAST_LOOKUP_TOKENS
from headway.doctor.rules.wording import amount, percent

__all__ = ["imbalance"]

LOAD_RATIO = 2.0
"""The busiest engine's requests, in those of the idlest."""
LEAST_LOAD = 1.0
"""Requests on the busiest, on average."""
HIT_RATE_SPREAD = 0.3


def imbalance(windows: Sequence[Window]) -> Finding:
    """One engine has far more to do than another, or finds far more in its cache."""
    name = "imbalance"
    loads = [(load, window) for window in windows if (load := _load(window)) is not None]
    if len(loads) < 2:
        return unjudged(name, "needs two engines whose load is known")
    busiest, idlest = max(loads, key=_first), min(loads, key=_first)
    rates = [rate for window in windows if (rate := _hit_rate(window)) is not None]
    spread = max(rates) - min(rates) if len(rates) > 1 else None
    ratio = busiest[0] / idlest[0] if idlest[0] else None
    figures = {
        "load_max": busiest[0],
        "load_min": idlest[0],
        "load_ratio": ratio,
        "hit_rate_spread": spread,
    }
    thresholds = {"load_ratio": LOAD_RATIO, "hit_rate_spread": HIT_RATE_SPREAD}
    what = (
        f"{amount(busiest[0])} requests running and waiting on {busiest[1].series.name}, "
        f"{amount(idlest[0])} on {idlest[1].series.name}"
    )
    if busiest[0] >= LEAST_LOAD and busiest[0] >= LOAD_RATIO * idlest[0]:
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


def _load(window: Window) -> float | None:
    running = window.levels("num_requests_running")
    waiting = window.levels("num_requests_waiting")
    return None if running is None or waiting is None else running.mean + waiting.mean


def _hit_rate(window: Window) -> float | None:
    asked, found = (window.increase(f"prefix_cache_{what}") for what in ("queries", "hits"))
    enough = asked is not None and asked >= LEAST_LOOKUP_TOKENS
    return found / asked if enough and found is not None and asked else None
