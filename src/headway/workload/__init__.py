"""Work for an engine or a server: how long requests are, when they come, what they share.

A `Workload` is a description, a page of JSON; the same one always makes the same requests. It
knows nothing of clocks or servers: whoever measures sends what `Workload.items` makes.

    workload.py    what there is, and how it is read    kinds.py    what comes with the package
    traffic.py     classes: lengths.py, arrivals.py, sharing.py, turns.py
    traces.py      traces of real servers               scaling.py  the same for another machine
    items.py       a request                            texts.py    its tokens, drawn when wanted
"""

from __future__ import annotations

from headway.workload.arrivals import (
    Arrivals,
    AtOnce,
    ClosedLoop,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    Ramp,
    arrival_times,
)
from headway.workload.items import WorkItem
from headway.workload.kinds import KINDS
from headway.workload.lengths import Length, LogNormal, draw_lengths, longest, shortest
from headway.workload.scaling import scaled
from headway.workload.sharing import Documents, SharedPrefix
from headway.workload.texts import Text
from headway.workload.traces import Replay, Trace, TraceFormat
from headway.workload.traffic import TrafficClass
from headway.workload.turns import Exponential, Pause, Turns
from headway.workload.workload import PLAIN_TOKENS, Workload, read_workload

__all__ = [
    "KINDS",
    "PLAIN_TOKENS",
    "Arrivals",
    "AtOnce",
    "ClosedLoop",
    "Constant",
    "Documents",
    "Exponential",
    "Gamma",
    "Length",
    "LogNormal",
    "OnOff",
    "Pause",
    "Poisson",
    "Ramp",
    "Replay",
    "SharedPrefix",
    "Text",
    "Trace",
    "TraceFormat",
    "TrafficClass",
    "Turns",
    "WorkItem",
    "Workload",
    "arrival_times",
    "draw_lengths",
    "longest",
    "read_workload",
    "scaled",
    "shortest",
]
