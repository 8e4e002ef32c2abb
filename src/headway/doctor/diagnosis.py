"""All rules, in the order in which the guide looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headway.doctor.finding import Finding, Severity, unjudged
from headway.doctor.readings import Window
from headway.doctor.rules.faults import engine_lost, rejections, steps_failed
from headway.doctor.rules.fleet import imbalance
from headway.doctor.rules.latency import itl_stalls
from headway.doctor.rules.memory import evictions, kv_pressure, preemptions, prefix_hit_rate
from headway.doctor.rules.queue import queue_time, running_at_limit, waiting_empty, waiting_growing
from headway.doctor.rules.wording import seconds
from headway.doctor.series import Series

__all__ = ["LOAD_RULES", "diagnose", "worst"]

LOAD_RULES: tuple[Callable[[Window], Finding], ...] = (
    prefix_hit_rate,
    preemptions,
    running_at_limit,
    waiting_growing,
    waiting_empty,
    kv_pressure,
    evictions,
    queue_time,
    itl_stalls,
)
"""Those that need traffic. A finding has its rule's name."""

_TRAFFIC = ("prompt_tokens", "generation_tokens", "request_success")


def diagnose(series: Sequence[Series]) -> list[Finding]:
    """What each rule says of each engine, the engines in their order, and of all together.

    Rules that found nothing wrong answer too, with `OK`, and those that could not judge with
    `UNKNOWN`: so who reads it knows what was looked at.
    """
    windows = [Window(each) for each in series]
    found = [
        replace(finding, source=window.series.name)
        for window in windows
        for finding in _of_engine(window)
    ]
    return [*found, imbalance(windows)] if len(windows) > 1 else found


def worst(findings: Sequence[Finding]) -> Severity:
    """The severity of all of them together."""
    return max((finding.severity for finding in findings), default=Severity.UNKNOWN)


def _of_engine(window: Window) -> Iterator[Finding]:
    if not window.num_samples:
        yield engine_lost(window)
        return
    if _has_traffic(window):
        yield from (rule(window) for rule in LOAD_RULES)
    else:
        why = f"no traffic in {seconds(window.duration_s)}"
        yield Finding(
            name="no_traffic",
            severity=Severity.INFO,
            what=f"{why}, so its load was not judged",
            cause="nobody asks it for anything",
            advice=("watch it while it serves, or for longer (--for)",),
        )
        yield from (unjudged(rule.__name__, why) for rule in LOAD_RULES)
    yield from (rule(window) for rule in (rejections, steps_failed))
    if not window.series.recorded:
        yield engine_lost(window)


def _has_traffic(window: Window) -> bool:
    if any(window.increase(name) for name in _TRAFFIC):
        return True
    levels = (window.levels(f"num_requests_{state}") for state in ("running", "waiting"))
    return any(each is not None and each.max > 0 for each in levels)
