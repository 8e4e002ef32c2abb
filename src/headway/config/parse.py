"""Option values that are written as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from headway.errors import InvalidConfig

__all__ = ["parse_bytes", "parse_weights"]


def parse_weights(name: str, text: str | None) -> Mapping[str, float]:
    """`alice=2,bob=0.5`: shares by tenant; InvalidConfig names `name`."""
    weights = {}
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(.+?)\s*=\s*(\d{1,20}(?:\.\d{1,20})?)\s*", part)
        if match is None or not (share := float(match[2])):
            raise InvalidConfig(name, f"must be shares like alice=2,bob=1, not {text!r}")
        weights[match[1]] = share
    return MappingProxyType(weights)


_UNITS = MappingProxyType(
    {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    | {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    | {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
)


def parse_bytes(name: str, text: str | int) -> int:
    """`2GiB`, `512MiB`, `1.5g`, `1000000`: a number of bytes; InvalidConfig names `name`."""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)\s*", str(text).lower())
    if match is None or match[2] not in _UNITS:
        raise InvalidConfig(name, f"must be a size like 2GiB or a number of bytes, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])
