"""A server's `/metrics`, read while a load runs on it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headway.bench.http import HttpClient
from headway.errors import HeadwayError

__all__ = ["Gauges", "counters", "polled", "read_metrics", "risen"]

INTERVAL_S = 0.25

_SERIES = re.compile(r"^(?:\w+:)?(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
"""Name without namespace, labels, value, as in Prometheus' text format; label values of ours hold
no brace."""
_GAUGES = re.compile(
    r"^(?:\w+:)?(num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    r"|num_preemptions_total)(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)
_SAME_FOR_ALL = re.compile(r'(?:engine|model_name)="[^"]*",?')
"""Labels that every series has."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a timeline shows, at a moment of the event loop's clock."""

    at_s: float
    values: Mapping[str, float]


@asynccontextmanager
async def polled(
    client: HttpClient, *, interval_s: float = INTERVAL_S
) -> AsyncIterator[list[Gauges]]:
    """Fills the list for as long as the context lasts, and once more at its end. A poll that fails
    leaves a gap: a server that is lost shows in its requests."""
    found: list[Gauges] = []
    polling = asyncio.create_task(_poll(client, found, interval_s))
    try:
        yield found
    finally:
        polling.cancel()
        await asyncio.wait([polling])
        if not polling.cancelled() and (error := polling.exception()) is not None:
            raise error
    await _poll_once(client, found)


async def _poll(client: HttpClient, found: list[Gauges], interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        await _poll_once(client, found)
        due = max(due + interval_s, loop.time())
        await asyncio.sleep(due - loop.time())


async def _poll_once(client: HttpClient, found: list[Gauges]) -> None:
    with contextlib.suppress(OSError):
        answer = await client.exchange("GET", "/metrics")
        if answer.status == 200:
            now = asyncio.get_running_loop().time()
            found.append(Gauges(now, _gauges(answer.body.decode(errors="replace"))))


def _gauges(text: str) -> dict[str, float]:
    """Sums over labels."""
    values: dict[str, float] = {}
    for name, value in _GAUGES.findall(text):
        values[name] = values.get(name, 0.0) + float(value)
    return values


async def read_metrics(client: HttpClient) -> str:
    """Raises HeadwayError where there are none, and OSError."""
    answer = await client.exchange("GET", "/metrics")
    if answer.status != 200:
        raise HeadwayError(f"the server answers {answer.status} to /metrics")
    return answer.body.decode(errors="replace")


def counters(text: str) -> dict[str, float]:
    """Every `…_total` of a page: summed over its labels, and where it has labels of its own by
    label too, as `request_success_total{finished_reason="stop"}`."""
    found: dict[str, float] = {}
    for name, labels, value in _SERIES.findall(text):
        if not name.endswith("_total"):
            continue
        found[name] = found.get(name, 0.0) + float(value)
        own = _SAME_FOR_ALL.sub("", labels.strip("{}")).strip(",")
        if own:
            key = f"{name}{{{own}}}"
            found[key] = found.get(key, 0.0) + float(value)
    return found


def risen(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """By how much; one that was not there before began at 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
