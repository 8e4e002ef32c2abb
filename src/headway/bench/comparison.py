"""A comparison that was measured: kept as JSON, from which every report can be made again."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headway.bench.keeping import read_kept, slim
from headway.bench.trials import Trial

__all__ = ["Comparison", "Goal", "read_comparison", "to_csv", "to_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the best point of a sweep is to be best at."""

    figure: str
    """In `Trial.result`; more is better: `output_throughput`, `request_goodput`."""
    max_ttft_ms: float | None = None
    """Points whose 99th percentile of TTFT is above are left out; None: none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was measured, how, where and when."""

    command: str
    """As it was typed."""
    date: str
    """Of the beginning, ISO 8601 in UTC."""
    machine: str
    version: str
    """Of Headway."""
    options: Mapping[str, Sequence[str]]
    """Of `headway serve`, by variant, in the order in which they are reported."""
    workloads: Mapping[str, Mapping[str, Any]]
    """By variant, as a file for `--workload` has it, with the first round's seed."""
    baseline: str | None
    """The variant that the others are compared with; None: a sweep."""
    goal: Goal | None = None
    """Of a sweep."""
    trials: Sequence[Trial]

    @property
    def rounds(self) -> int:
        return 1 + max(trial.round for trial in self.trials)


def read_comparison(path: Path) -> Comparison:
    """Raises InvalidConfig (`from`) for what is none."""
    return read_kept(path, Comparison, "comparison")


def to_json(comparison: Comparison) -> str:
    """By request only what plots need, to five digits."""
    kept = replace(comparison, trials=[slim(trial, _KEPT) for trial in comparison.trials])
    return msgspec.json.encode(kept).decode() + "\n"


_KEPT = ("class_names", "output_lens", "ttfts", "itls", "latencies")


def to_csv(comparison: Comparison) -> str:
    """A row a trial: each figure that is a number, and what each of the server's counters, summed
    over its labels, rose by."""
    rows = [
        {
            "variant": trial.variant,
            "round": trial.round,
            "seed": trial.seed,
            **{key: value for key, value in trial.result.items() if isinstance(value, int | float)},
            **{key: value for key, value in trial.counters.items() if "{" not in key},
        }
        for trial in comparison.trials
    ]
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
