"""How long prompts and outputs are, in tokens."""

from __future__ import annotations

import math
from random import Random
from typing import TypeAlias

import msgspec

from headway.errors import InvalidConfig

__all__ = ["Length", "LogNormal", "check_length", "draw_lengths", "longest", "shortest"]


class LogNormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """round(median · exp(sigma · z)) with a standard normal z, moved into [low, high].

    Lengths of real prompts are spread like this: most are short, a few are very long. The mean
    before the bounds is median · exp(sigma² / 2).
    """

    median: float
    sigma: float
    high: int
    low: int = 1


Length: TypeAlias = int | tuple[int, int] | LogNormal
"""Tokens: always as many; any number from the first to the second, both included; log-normal."""


def draw_lengths(length: Length, count: int, random: Random) -> list[int]:
    match length:
        case int():
            return [length] * count
        case (low, high):
            return [random.randint(low, high) for _ in range(count)]
        case LogNormal():
            drawn = (length.median * random.lognormvariate(0, length.sigma) for _ in range(count))
            return [min(max(round(value), length.low), length.high) for value in drawn]


def shortest(length: Length) -> int:
    """The least that may be drawn."""
    match length:
        case int():
            return length
        case (low, _):
            return low
        case LogNormal():
            return length.low


def longest(length: Length) -> int:
    """The most that may be drawn."""
    match length:
        case int():
            return length
        case (_, high):
            return high
        case LogNormal():
            return length.high


def check_length(field: str, length: Length) -> None:
    """Raises InvalidConfig, naming `field`, for what is no length."""
    match length:
        case int():
            wrong = length < 1
        case (low, high):
            wrong = not 1 <= low <= high
        case LogNormal():
            wrong = not (
                1 <= length.low <= length.high
                and 0 < length.median < math.inf
                and 0 <= length.sigma < math.inf
            )
    if wrong:
        raise InvalidConfig(
            field,
            "must be a number from 1, two such numbers in order, or a log-normal with median "
            f"above 0, sigma from 0 and 1 <= low <= high, not {msgspec.to_builtins(length)}",
        )
