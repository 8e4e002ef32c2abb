"""Trials of an experiment as a file, from which its page can be made again without measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.bench.keeping import read_kept
from headway.bench.trials import Trial
from headway.errors import InvalidConfig

__all__ = ["GAPS", "KEPT", "Saved", "read_saved", "write_saved"]

KEPT = ("class_names", "input_lens", "output_lens", "ttfts", "latencies", "failed_after")
"""Details of a trial that judges and plots need."""
GAPS = "itls"
"""And where a plot shows them, those between all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was measured, where and when."""

    experiment: str
    date: str
    """Of the beginning, ISO 8601 in UTC."""
    machine: str
    version: str
    """Of Headway."""
    rounds: int
    quick: bool
    """A fifth of the requests: figures of a trial of the experiment itself."""
    trials: Sequence[Trial]


def write_saved(saved: Saved, path: Path) -> None:
    """Raises InvalidConfig (`output_dir`) where that fails."""
    try:
        path.write_bytes(msgspec.json.encode(saved) + b"\n")
    except OSError as error:
        raise InvalidConfig("output_dir", f"{path}: {error.strerror or error}") from None


def read_saved(path: Path) -> Saved:
    """Raises InvalidConfig (`from`) for what is no such file."""
    return read_kept(path, Saved, "experiment's trials")
