"""Types for the options of `headway bench`; argparse shows their names where a value is invalid."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from headway.cli.values import pair

__all__ = ["above_zero", "json_object", "natural", "pair", "seconds", "share"]


def _number(name: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    """A type for argparse, which shows its name: "invalid … value: …"."""

    def read(text: str) -> float:
        value = float(text)
        if not holds(value):
            raise ValueError
        return value

    read.__name__ = name
    return read


above_zero = _number("number above 0", lambda value: value > 0)
share = _number("number in [0, 1)", lambda value: 0 <= value < 1)
seconds = _number("number of seconds", lambda value: 0 <= value < math.inf)


def natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


natural.__name__ = "number from 0"


def json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


json_object.__name__ = "JSON object"
