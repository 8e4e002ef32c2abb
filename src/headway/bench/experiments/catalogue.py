"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headway.bench.experiments.batching import BATCHING
from headway.bench.experiments.cache import BLOCK_SIZE, PREFIX_CACHING
from headway.bench.experiments.experiment import Experiment
from headway.bench.experiments.prefill import CHUNKED_PREFILL, TOKEN_BUDGET
from headway.bench.experiments.pressure import MAX_NUM_SEQS, PREEMPTION, WATERMARK
from headway.bench.experiments.queueing import POLICIES, QUEUE_LIMIT
from headway.errors import HeadwayError

__all__ = ["EXPERIMENTS", "experiment_named"]

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        each.name: each
        for each in (
            BATCHING,
            CHUNKED_PREFILL,
            TOKEN_BUDGET,
            MAX_NUM_SEQS,
            BLOCK_SIZE,
            PREFIX_CACHING,
            WATERMARK,
            PREEMPTION,
            POLICIES,
            QUEUE_LIMIT,
        )
    }
)
"""In the order of the guide."""


def experiment_named(name: str) -> Experiment:
    """Raises HeadwayError that lists them where there is none of that name."""
    if name not in EXPERIMENTS:
        names = ", ".join(EXPERIMENTS)
        raise HeadwayError(f"there is no experiment {name!r}; there are {names}, and all")
    return EXPERIMENTS[name]
