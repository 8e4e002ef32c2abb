"""Trials of an experiment as a file, from which its page can be made again without measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway import __version__
from headway.bench.keeping import read_kept, write_output
from headway.bench.trials import Trial
from headway.errors import InvalidConfig

__all__ = ["GAPS", "KEPT", "Saved", "read_earlier", "read_saved", "write_saved"]

KEPT = (
    "class_names",
    "input_lens",
    "output_lens",
    "ttfts",
    "latencies",
    "failed_after",
    "errors",
)
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


def read_earlier(directory: Path, experiment: str, *, machine: str, quick: bool) -> Saved:
    """What more rounds may be added to. Raises InvalidConfig (`add`) where there is nothing, or
    where it was measured otherwise: with another machine, or another version."""
    path = directory / f"{experiment}.json"
    saved = read_saved(path, option="add")
    then = (saved.machine, f"Headway {saved.version}", "--quick" if saved.quick else "whole")
    now = (machine, f"Headway {__version__}", "--quick" if quick else "whole")
    for was, is_now in zip(then, now, strict=True):
        if was != is_now:
            raise InvalidConfig("add", f"{path} is of: {was}; this would be of: {is_now}")
    return saved


def write_saved(saved: Saved, path: Path) -> None:
    """Raises InvalidConfig (`output_dir`) where that fails."""
    write_output("output_dir", path, msgspec.json.encode(saved).decode() + "\n")


def read_saved(path: Path, *, option: str = "from") -> Saved:
    """Raises InvalidConfig, naming the option, for what is no such file, or one that another
    version wrote."""
    saved = read_kept(path, Saved, "experiment's trials", option=option)
    missing = {name for trial in saved.trials for name in KEPT if name not in trial.details}
    if missing or not saved.trials:
        lacks = ", ".join(sorted(missing)) or "trials"
        raise InvalidConfig(option, f"{path}, by Headway {saved.version}, lacks {lacks}")
    return saved
