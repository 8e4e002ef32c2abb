"""Values of options that argparse has no types for; it shows their names where one is invalid."""

from __future__ import annotations

import re

__all__ = ["duration", "pair"]

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """`200ms`, `60s`, `5m`, `1h` or seconds: in seconds, above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|)", text.strip())
    if match is None or not float(match[1]):
        raise ValueError
    return float(match[1]) * _UNITS[match[2]]


duration.__name__ = "time like 60s"


def pair(text: str) -> tuple[str, str]:
    """A name and what it stands for."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ValueError
    return key.strip(), value.strip()


pair.__name__ = "KEY=VALUE"
