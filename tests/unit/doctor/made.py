"""Series of made-up engines, for the doctor's tests: one that is healthy, and states beside it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from headway.core.step import WAITING_REASONS
from headway.doctor.series import Buckets, Failure, Sample, Series

NUM = 41
BOUNDS = tuple(0.001 * 1.25**power for power in range(40))
TOKEN_BOUNDS = tuple(float(2**power) for power in range(15))
_IN_TOKENS = frozenset({"iteration_tokens_total", "request_prompt_tokens"})

Values = float | Sequence[float]

HEALTHY_GAUGES: Mapping[str, Values] = {
    "num_requests_running": (5, 7, 6, 8) * 10 + (5,),
    "num_requests_waiting": (0, 1, 0, 0) * 10 + (0,),
    "kv_cache_usage_perc": 0.5,
}
HEALTHY_COUNTERS: Mapping[str, Values] = {
    "request_success{finished_reason=stop}": 4,
    "request_success{finished_reason=error}": 0,
    "request_success{finished_reason=timeout}": 0,
    "prompt_tokens": 800,
    "generation_tokens": 200,
    "prefix_cache_queries": 800,
    "prefix_cache_hits": 480,
    "num_preemptions": 0,
    "num_preemptions_by_cause{cause=memory}": 0,
    "num_preemptions_by_cause{cause=priority}": 0,
    "kv_cache_evictions": 0,
    "recomputed_tokens": 0,
    "steps_failed": 0,
    "engine_restarts": 0,
    "request_errors{code=queue_full}": 0,
}
HEALTHY_TIMES: Mapping[str, Sequence[float]] = {
    "request_queue_time_seconds": (0.01, 0.02, 0.01, 0.02),
    "time_to_first_token_seconds": (0.1, 0.12, 0.1, 0.15),
    "inter_token_latency_seconds": (0.03,) * 198 + (0.05,) * 2,
    "iteration_tokens_total": (40,) * 10,
    "request_prompt_tokens": (200,) * 4,
}
ONLY_OURS = (
    *("num_preemptions_by_cause{cause=memory}", "num_preemptions_by_cause{cause=priority}"),
    *("kv_cache_evictions", "recomputed_tokens", "steps_failed", "engine_restarts"),
    "request_errors{code=queue_full}",
)


def made(
    gauges: Mapping[str, Values] | None = None,
    counters: Mapping[str, Values] | None = None,
    times: Mapping[str, Sequence[float]] | None = None,
    *,
    reasons: Mapping[str, Values] | None = None,
    info: Mapping[str, str] | None = None,
    flavour: str = "headway",
    failures: Sequence[Failure] = (),
    every_s: float = 1.0,
    offset: float = 0.0,
    restart_at: int | None = None,
    source: str = "http://a:8000",
) -> Series:
    """Healthy but for what is given: gauges as levels, counters as rises per sample, times as
    what is observed in each sample. A sequence has a value for each sample.

    Args:
        offset: what every counter began at.
        restart_at: the sample before which all counters began again.
    """
    levels = {**HEALTHY_GAUGES, **(gauges or {})}
    rises = {**HEALTHY_COUNTERS, **(counters or {})}
    taken = {**HEALTHY_TIMES, **(times or {})}
    if flavour == "headway":
        by_reason = {**dict.fromkeys(WAITING_REASONS, 0.0), **(reasons or {})}
        levels.update(
            (f"num_requests_waiting_by_reason{{reason={reason}}}", values)
            for reason, values in by_reason.items()
        )
    else:
        rises = {name: rise for name, rise in rises.items() if name not in ONLY_OURS}
    per_round = {name: _counts(name, values) for name, values in taken.items()}
    counts = dict.fromkeys(rises, offset)
    rounds = offset
    samples = []
    for index in range(NUM):
        if index == restart_at:
            counts, rounds = dict.fromkeys(rises, 0.0), 0.0
        elif index:
            counts = {name: counts[name] + _at(rise, index) for name, rise in rises.items()}
            rounds += 1
        samples.append(
            Sample(
                time_s=1000.0 + index * every_s,
                gauges=_families({name: _at(level, index) for name, level in levels.items()}),
                counters=_families(counts),
                histograms={name: _after(rounds, each) for name, each in per_round.items()},
                info={"block_size": "16", "enable_prefix_caching": "True", **(info or {})},
            )
        )
    return Series(
        source=source, engine="", flavour=flavour, samples=tuple(samples), failures=tuple(failures)
    )


def _at(values: Values, index: int) -> float:
    return float(values if isinstance(values, int | float) else values[index])


def _families(values: Mapping[str, float]) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for full, value in values.items():
        name, _, rest = full.partition("{")
        key, _, label = rest.rstrip("}").partition("=")
        found.setdefault(name, {})[frozenset([(key, label)] if key else [])] = value
    return found


def _counts(name: str, values: Sequence[float]) -> Buckets:
    bounds = TOKEN_BOUNDS if name in _IN_TOKENS else BOUNDS
    counts = [0.0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return Buckets((*bounds, math.inf), tuple(accumulate(counts)), sum(values))


def _after(rounds: float, each: Buckets) -> Buckets:
    return Buckets(each.bounds, tuple(rounds * n for n in each.counts), rounds * each.sum)
