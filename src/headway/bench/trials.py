"""One load against several ways to run a server, interleaved and repeated.

Every trial has a server of its own, fresh, so that none finds what another left in its cache. In
each round every variant has its turn, in an order that is drawn anew, so that a machine that
changes with time changes all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.bench.serving import Load

__all__ = ["Sample", "Trial", "Variant", "run_trials"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to run the server."""

    name: str
    """As reports show it: `baseline`, `max_num_seqs=64`."""
    options: tuple[str, ...] = ()
    """Of `headway serve`, as on its command line."""
    load: Load | None = None
    """Where it is not the one that all have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How the server was at one moment, by its `/metrics`."""

    at_s: float
    """Since the load began."""
    running: float
    waiting: float
    kv_usage: float
    """Share of the KV blocks that requests hold."""
    preemptions: float
    """Since the load began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One variant, measured once."""

    variant: str
    round: int
    """From 0. Trials of one round are compared with each other."""
    seed: int
    """Of the load: the same for all trials of a round."""
    result: Mapping[str, Any]
    """As `headway bench serve` saves it."""
    details: Mapping[str, Any]
    """By request, likewise."""
    samples: Sequence[Sample]
    counters: Mapping[str, float] = field(default_factory=dict)
    """What each of the server's counters (`kv_cache_evictions_total`, …, without the namespace; summed
    over their labels, and by label as `request_success_total{finished_reason="stop"}`) rose by
    from before the load to after it."""


def run_trials(
    variants: Sequence[Variant],
    load: Load,
    *,
    rounds: int,
    say: Callable[[str], None],
    model: str | None = None,
    seed: int = 0,
) -> list[Trial]:
    """Starts a server for each trial, sends the load, and ends the server.

    Args:
        variants: of different names.
        load: what is sent; round r sends its workload with seed `seed + r`.
        rounds: how often each variant is measured.
        say: is told of each trial as it begins and what it came to.
        model: of `headway serve`; None: its default.
        seed: of the order within a round as well.

    Raises HeadwayError where a server does not start, or all requests of a trial fail; its
    message has what the server said last.
    """
    raise NotImplementedError
