"""When requests arrive, in seconds from the start."""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random
from typing import TypeAlias

import msgspec

from headway.errors import InvalidConfig

__all__ = [
    "Arrivals",
    "AtOnce",
    "ClosedLoop",
    "Constant",
    "Gamma",
    "Poisson",
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


Arrivals: TypeAlias = AtOnce | Poisson | Gamma | Constant | ClosedLoop


def arrival_times(arrivals: Arrivals, count: int, random: Random) -> list[float]:
    """In order. At a random rate they are stretched so that the last comes at count / rate, as
    vLLM does: else the load would be another with every seed. In a closed loop all may go at
    once, as far as there are users."""
    match arrivals:
        case Poisson(rate):
            return _gamma(rate, 1.0, count, random)
        case Gamma(rate, burstiness):
            return _gamma(rate, burstiness, count, random)
        case Constant(interval_s):
            return [index * interval_s for index in range(count)]
        case AtOnce() | ClosedLoop():
            return [0.0] * count


def _gamma(rate: float, burstiness: float, count: int, random: Random) -> list[float]:
    times = list(accumulate(random.gammavariate(burstiness, 1.0) for _ in range(count)))
    return [time / times[-1] * count / rate for time in times]


def check_arrivals(field: str, arrivals: Arrivals) -> None:
    """Raises InvalidConfig, naming `field` and what is wrong in it."""
    for name in arrivals.__struct_fields__:
        value = getattr(arrivals, name)
        if not 0 < value < math.inf:
            raise InvalidConfig(f"{field}.{name}", f"must be above 0 and finite, not {value}")
