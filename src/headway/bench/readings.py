"""What reports read from trials."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low

from headway.bench.trials import Trial

__all__ = ["by_variant", "hit_rate", "middle", "typical"]


def by_variant(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """In order of first appearance."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.variant, []).append(trial)
    return found


def middle(values: Sequence[float | None]) -> float | None:
    """Median of those there are; None: there is none."""
    found = [value for value in values if value is not None]
    return median(found) if found else None


def typical(trials: Sequence[Trial], variant: str) -> Trial:
    """That of the variant's trials whose output throughput is the middle one; of two in the middle
    the lower."""
    own = [trial for trial in trials if trial.variant == variant]
    middle = median_low(trial.result["output_throughput"] for trial in own)
    return next(trial for trial in own if trial.result["output_throughput"] == middle)


def hit_rate(trial: Trial) -> float | None:
    """Share of the tokens looked up in the prefix cache that were found; None: none was."""
    asked = trial.counters.get("prefix_cache_queries_total", 0.0)
    return trial.counters.get("prefix_cache_hits_total", 0.0) / asked if asked else None
