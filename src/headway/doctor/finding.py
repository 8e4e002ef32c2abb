"""What a rule says of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["Figures", "Finding", "Severity", "fine", "unjudged"]

Figures = Mapping[str, float | None]


class Severity(IntEnum):
    """How much it matters; what is compared is the order."""

    UNKNOWN = 0
    """It could not be judged; `Finding.what` says why."""
    OK = 1
    INFO = 2
    """Good to know, and nothing is wrong."""
    WARNING = 3
    CRITICAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule's answer, with what it rests on."""

    name: str
    severity: Severity
    what: str
    """A sentence with its figures."""
    cause: str = ""
    """The likely one; empty where all is well."""
    advice: tuple[str, ...] = ()
    """What to change, the first thing first."""
    figures: Figures = field(default_factory=dict)
    """What was measured in the window, by name; shares are in [0, 1], times in seconds."""
    thresholds: Figures = field(default_factory=dict)
    """What it was held against."""
    source: str = ""
    """Name of the series; empty where it is of all of them."""


def fine(name: str, what: str, figures: Figures, thresholds: Figures) -> Finding:
    """All is well."""
    return Finding(
        name=name, severity=Severity.OK, what=what, figures=figures, thresholds=thresholds
    )


def unjudged(name: str, why: str) -> Finding:
    """There is too little to judge by."""
    return Finding(name=name, severity=Severity.UNKNOWN, what=why)
