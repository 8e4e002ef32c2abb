"""Work for an engine or a server: how long requests are, when they come, what they share.

A `Workload` is a description, a page of JSON; the same one always makes the same requests. It
knows nothing of clocks or servers: whoever measures sends what `Workload.items` makes.
"""

from __future__ import annotations

from headway.workload.arrivals import (
    Arrivals,
    AtOnce,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    arrival_times,
)
from headway.workload.lengths import Length, LogNormal, draw_lengths, shortest
from headway.workload.workload import (
    PLAIN_TOKENS,
    SharedPrefix,
    TrafficClass,
    WorkItem,
    Workload,
    read_workload,
)

__all__ = [
    "PLAIN_TOKENS",
    "Arrivals",
    "AtOnce",
    "ClosedLoop",
    "Constant",
    "Gamma",
    "Length",
    "LogNormal",
    "Poisson",
    "SharedPrefix",
    "TrafficClass",
    "WorkItem",
    "Workload",
    "arrival_times",
    "draw_lengths",
    "read_workload",
    "shortest",
]
