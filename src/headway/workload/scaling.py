"""The same load for another machine: requests faster or slower, longer or shorter."""

from __future__ import annotations

import msgspec

from headway.errors import InvalidConfig
from headway.workload.arrivals import (
    Arrivals,
    AtOnce,
    ClosedLoop,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    Ramp,
)
from headway.workload.lengths import Length, LogNormal
from headway.workload.traces import Trace
from headway.workload.traffic import TrafficClass
from headway.workload.workload import Workload

__all__ = ["scaled"]


def scaled(workload: Workload, *, rate: float = 1.0, length: float = 1.0) -> Workload:
    """`workload` with its rates times `rate` and its lengths times `length`.

    Numbers of requests and of users, pauses, and how long floods and ramps take stay as they are.
    In whole tokens, each length is at least 1, and a trace's blocks are as in `Trace`.

    Raises InvalidConfig: `rate_scale` where nothing comes at a rate, or that is no scale;
    `length_scale` where a prefix would be no shorter than its prompts.
    """
    for field, value in (("rate_scale", rate), ("length_scale", length)):
        if not 0 < value < float("inf"):
            raise InvalidConfig(field, f"must be above 0 and finite, not {value}")
    if rate != 1 and not workload.traces and all(map(_has_no_rate, workload.classes)):
        raise InvalidConfig("rate_scale", "the workload has no rate: users or all at once")
    found = msgspec.structs.replace(
        workload,
        classes=tuple(_class(kind, rate, length) for kind in workload.classes),
        traces=tuple(_trace(trace, rate, length) for trace in workload.traces),
    )
    try:
        found.check()
    except InvalidConfig as error:
        raise InvalidConfig("length_scale", f"{length:g} makes {error}") from None
    return found


def _has_no_rate(kind: TrafficClass) -> bool:
    return isinstance(kind.arrivals, AtOnce | ClosedLoop)


def _trace(trace: Trace, rate: float, length: float) -> Trace:
    return msgspec.structs.replace(
        trace, rate_scale=trace.rate_scale * rate, length_scale=trace.length_scale * length
    )


def _class(kind: TrafficClass, rate: float, length: float) -> TrafficClass:
    prefix, documents, turns = kind.shared_prefix, kind.documents, kind.turns
    replace = msgspec.structs.replace
    return replace(
        kind,
        input_len=_length(kind.input_len, length),
        output_len=_length(kind.output_len, length),
        arrivals=_arrivals(kind.arrivals, rate),
        shared_prefix=prefix and replace(prefix, len=_tokens(prefix.len, length)),
        documents=documents and replace(documents, len=_length(documents.len, length)),
        turns=turns and replace(turns, input_len=_length(turns.input_len, length)),
    )


def _tokens(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def _length(length: Length, scale: float) -> Length:
    match length:
        case int():
            return _tokens(length, scale)
        case (low, high):
            return _tokens(low, scale), _tokens(high, scale)
        case LogNormal():
            return LogNormal(
                median=length.median * scale,
                sigma=length.sigma,
                low=_tokens(length.low, scale),
                high=_tokens(length.high, scale),
            )


def _arrivals(arrivals: Arrivals, scale: float) -> Arrivals:
    replace = msgspec.structs.replace
    match arrivals:
        case Poisson(rate) | Gamma(rate, _):
            return replace(arrivals, rate=rate * scale)
        case Constant(interval_s):
            return Constant(interval_s / scale)
        case Ramp():
            return replace(
                arrivals, rate_from=arrivals.rate_from * scale, rate_to=arrivals.rate_to * scale
            )
        case OnOff():
            return replace(
                arrivals, rate_on=arrivals.rate_on * scale, rate_off=arrivals.rate_off * scale
            )
        case AtOnce() | ClosedLoop():
            return arrivals
