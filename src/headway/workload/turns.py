"""Conversations: what follows a class's first requests."""

from __future__ import annotations

import math
from random import Random
from typing import TypeAlias

import msgspec

from headway.errors import InvalidConfig
from headway.workload.lengths import Length, check_length

__all__ = ["Exponential", "Pause", "Turns", "check_turns", "draw_pause"]


class Exponential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mostly short, sometimes long, as people think."""

    mean_s: float


Pause: TypeAlias = float | tuple[float, float] | Exponential
"""Seconds: always as many; evenly between two; exponential."""


class Turns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Makes each request of a class the first of a conversation.

    A later turn's prompt is the one before, its answer, and something new: the next question, or
    what an agent's tool gave. Its answer is as long as the class's.
    """

    count: Length
    """Requests of a conversation, the first included."""
    input_len: Length
    """Tokens that each later turn adds."""
    pause_s: Pause = 0.0
    """From the end of an answer to the next turn."""


def draw_pause(pause: Pause, random: Random) -> float:
    match pause:
        case Exponential(mean_s):
            return random.expovariate(1 / mean_s)
        case (low, high):
            return random.uniform(low, high)
        case _:
            return float(pause)


def check_turns(field: str, turns: Turns) -> None:
    """Raises InvalidConfig, naming `field` and what is wrong in it."""
    check_length(f"{field}.count", turns.count)
    check_length(f"{field}.input_len", turns.input_len)
    match turns.pause_s:
        case Exponential(mean_s):
            wrong = not 0 < mean_s < math.inf
        case (low, high):
            wrong = not 0 <= low <= high < math.inf
        case seconds:
            wrong = not 0 <= seconds < math.inf
    if wrong:
        raise InvalidConfig(
            f"{field}.pause_s",
            "must be seconds from 0, two such numbers in order, or an exponential with mean_s "
            f"above 0, not {msgspec.to_builtins(turns.pause_s)}",
        )
