"""Whether a load was more than the server can do: then its figures describe a queue that grows,
or those few whom the server let in, and would be others had the run been longer or shorter.

In an open loop, whose requests come whatever the server does, a server that lets all wait shows it
in two ways at once, from the first third of the run to the second and to the last: more requests
under way as another comes, and later first tokens. Either alone is no sign: a server fills as a run
begins, and long prompts come by chance. One that limits its queue refuses the rest, and that is a
sign by itself. A closed loop cannot be too much: who waits sends nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, TypeVar

from headway.bench.load import Outcome, Run
from headway.workload import AtOnce, ClosedLoop, Workload

__all__ = ["Saturation", "saturation"]

T = TypeVar("T")

# In simulated queues of one and of 16 servers, with 132 requests, these find 97 of 100 or more at
# 1.5 times the rate that can be served, all at twice, and none at 0.7 times.
_LEAST_REQUESTS = 20
_GROWTH = 2.0
"""From the first third to the last, of the requests under way and of the median TTFT, at least."""
_STILL = 0.3
"""Of the growth that comes after the second third, at least: a server fills at first."""
_LEFT_OVER = 0.08
_LEAST_LEFT_OVER = 8.0
"""The requests under way must have grown by so many of all that came, and by so many at least: on a
steady server a queue comes and goes, and is as long in a short run as in a long one."""
_REFUSED = 0.1
"""Of all that came, at least: what comes at 1.1 times the rate that can be served has so many too
many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """The signs, in the first and the last third of a run's requests."""

    saturated: bool
    queue_grows: bool
    refused_share: float
    """Of all that came, with HTTP 429 or 503."""
    first_ttft_ms: float | None
    """Median, from when a request was to be sent, waiting in the client included; of those that
    were answered. None: none was."""
    last_ttft_ms: float | None
    first_concurrency: float
    """Mean, as another came."""
    last_concurrency: float
    arrival_rate: float
    """Requests that came a second, answered or not."""
    served_rate: float
    """Requests that were answered a second, until the last one was: about what the server can do,
    where it is saturated."""


def saturation(runs: Sequence[Run], workload: Workload) -> dict[str, Any]:
    """`saturated` (None: not to be told, in a closed loop or of so few requests), and `saturation`,
    the signs in the run where they are strongest."""
    names = {
        source.name
        for source in workload.sources
        if not isinstance(getattr(source, "arrivals", None), AtOnce | ClosedLoop)
    }
    found = [signs for run in runs if (signs := _signs(run, names)) is not None]
    if not found:
        return {"saturated": None, "saturation": None}
    worst = max(found, key=lambda each: (each.saturated, each.refused_share, _growth(each)))
    shown = asdict(worst)
    return {"saturated": shown.pop("saturated"), "saturation": shown}


def _growth(signs: Saturation) -> float:
    return signs.last_concurrency - signs.first_concurrency


def _signs(run: Run, names: set[str]) -> Saturation | None:
    came = [each for each in run.outcomes if each.item.class_name in names and not each.unsent]
    came.sort(key=lambda each: each.arrival_s)
    good = [each for each in came if each.error is None]
    refused_share = sum(each.refused for each in came) / len(came) if came else 0.0
    told = len(good) >= _LEAST_REQUESTS or (good and refused_share >= _REFUSED)
    if not told or len(came) < _LEAST_REQUESTS or came[0].arrival_s == came[-1].arrival_s:
        return None
    ends = sorted(map(_end, came))
    concurrency = [
        fmean(third)
        for third in _thirds(
            [index - bisect_right(ends, each.arrival_s) for index, each in enumerate(came)]
        )
    ]
    ttft = [_ttft(third) for third in _thirds(came)]
    grows = _rises(ttft) and _rises(concurrency) and _left_over(concurrency, len(came))
    return Saturation(
        saturated=grows or refused_share >= _REFUSED,
        queue_grows=grows,
        refused_share=refused_share,
        first_ttft_ms=ttft[0],
        last_ttft_ms=ttft[-1],
        first_concurrency=concurrency[0],
        last_concurrency=concurrency[-1],
        arrival_rate=(len(came) - 1) / (came[-1].arrival_s - came[0].arrival_s),
        served_rate=len(good) / (max(map(_end, good)) - came[0].arrival_s),
    )


def _end(outcome: Outcome) -> float:
    return outcome.chunk_times_s[-1] if outcome.error is None else outcome.ended_s


def _ttft(outcomes: Sequence[Outcome]) -> float | None:
    """Median in milliseconds, of those that were answered."""
    found = [each.chunk_times_s[0] - each.arrival_s for each in outcomes if each.error is None]
    return median(found) * 1e3 if found else None


def _thirds(values: Sequence[T]) -> list[Sequence[T]]:
    cuts = [len(values) * index // 3 for index in range(4)]
    return [values[a:b] for a, b in pairwise(cuts)]


def _rises(thirds: Sequence[float | None]) -> bool:
    first, middle, last = thirds
    if first is None or middle is None or last is None:
        return False
    return first < middle < last and last >= _GROWTH * first


def _left_over(concurrency: Sequence[float], count: int) -> bool:
    first, middle, last = concurrency
    growth = last - first
    return growth >= max(_LEAST_LEFT_OVER, _LEFT_OVER * count) and last - middle >= _STILL * growth
