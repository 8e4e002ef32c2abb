"""When requests arrive, in seconds from the start."""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random
from typing import Literal, TypeAlias

import msgspec

from headway.errors import InvalidConfig

__all__ = [
    "Arrivals",
    "AtOnce",
    "ClosedLoop",
    "Constant",
    "Gamma",
    "OnOff",
    "Poisson",
    "Ramp",
    "arrival_times",
    "check_arrivals",
]


class AtOnce(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="at_once"):
    """All at the start."""


class Poisson(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="poisson"):
    """Independently of each other, `rate` a second on average."""

    rate: float


class Gamma(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gamma"):
    """Gaps from a gamma distribution of shape `burstiness`: below 1 they come in bursts, 1 is
    Poisson, above 1 they are more even. The gaps' coefficient of variation is burstiness^-½."""

    rate: float
    burstiness: float


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="constant"):
    """One every `interval_s` seconds, the first at the start."""

    interval_s: float


class ClosedLoop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="closed_loop"):
    """So many users, each of whom sends the next request when the last one has been answered."""

    users: int


class Ramp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ramp"):
    """At random, at a rate that goes from one to another, up or down, as time goes."""

    rate_from: float
    rate_to: float
    shape: Literal["linear", "exponential"] = "linear"
    duration_s: float | None = None
    """How long the rate takes; then it stays. None: until the last request."""
    burstiness: float = 1.0
    """As in `Gamma`, of the gaps on a clock that runs with the rate."""


class OnOff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="on_off"):
    """At random, at one rate for a while, then at another for a while, again and again: floods."""

    rate_on: float
    on_s: float
    off_s: float
    rate_off: float = 0.0


Arrivals: TypeAlias = AtOnce | Poisson | Gamma | Constant | ClosedLoop | Ramp | OnOff


def arrival_times(arrivals: Arrivals, count: int, random: Random) -> list[float]:
    """In order. At a random rate they are stretched so that the last comes when `count` are due
    (at a rate that stays, at count / rate), as vLLM does: else the load would be another with
    every seed. In a closed loop all may go at once, as far as there are users."""
    match arrivals:
        case Poisson(rate):
            return [event / rate for event in _events(1.0, count, random)]
        case Gamma(rate, burstiness):
            return [event / rate for event in _events(burstiness, count, random)]
        case Constant(interval_s):
            return [index * interval_s for index in range(count)]
        case Ramp():
            return [
                _when_ramp(arrivals, e, count) for e in _events(arrivals.burstiness, count, random)
            ]
        case OnOff():
            return [_when_on_off(arrivals, event) for event in _events(1.0, count, random)]
        case AtOnce() | ClosedLoop():
            return [0.0] * count


def _events(burstiness: float, count: int, random: Random) -> list[float]:
    """Moments of a gamma process of rate 1, the last at `count`. A rate that changes is such a
    process on a clock that runs with the rate (time change; Çinlar, 1975)."""
    times = list(accumulate(random.gammavariate(burstiness, 1.0) for _ in range(count)))
    return [time / times[-1] * count for time in times]


def _when_ramp(ramp: Ramp, event: float, count: int) -> float:
    """The time by which `event` requests are due: the rate's integral, inverted."""
    a, b = ramp.rate_from, ramp.rate_to
    if a == b:
        return event / a
    if ramp.shape == "linear":
        mean = (a + b) / 2
        duration_s = ramp.duration_s or count / mean
        due = mean * duration_s
        if event > due:
            return duration_s + (event - due) / b
        # The root of a·t + (b - a)·t² / 2·duration = event that is in the ramp.
        slope = (b - a) / duration_s
        return 2 * event / (a + math.sqrt(max(0.0, a * a + 2 * slope * event)))
    growth = math.log(b / a)
    duration_s = ramp.duration_s or count * growth / (b - a)
    due = (b - a) / growth * duration_s
    if event > due:
        return duration_s + (event - due) / b
    return duration_s / growth * math.log1p(event * growth / (a * duration_s))


_ROUNDING = 1e-9


def _when_on_off(floods: OnOff, event: float) -> float:
    on, off = floods.rate_on * floods.on_s, floods.rate_off * floods.off_s
    periods, rest = divmod(event, on + off)
    if off == 0 and periods and rest < _ROUNDING * on:
        # The last moment of a flood, and not the first of the next.
        periods, rest = periods - 1, on
    begin = periods * (floods.on_s + floods.off_s)
    if rest <= on:
        return begin + rest / floods.rate_on
    return begin + floods.on_s + (rest - on) / floods.rate_off


_MAY_BE_ZERO = ("rate_off",)


def check_arrivals(field: str, arrivals: Arrivals) -> None:
    """Raises InvalidConfig, naming `field` and what is wrong in it."""
    for name in arrivals.__struct_fields__:
        value = getattr(arrivals, name)
        if value is None or isinstance(value, str) or (value == 0 and name in _MAY_BE_ZERO):
            continue
        if not 0 < value < math.inf:
            raise InvalidConfig(f"{field}.{name}", f"must be above 0 and finite, not {value}")
