"""Trials that nobody measured, for judges of experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from headway.bench.trials import Sample, Trial

PLAIN = {
    "request_throughput": 10.0,
    "output_throughput": 500.0,
    "median_ttft_ms": 200.0,
    "p90_ttft_ms": 400.0,
    "p99_ttft_ms": 600.0,
    "median_tpot_ms": 20.0,
    "p99_tpot_ms": 40.0,
    "p99_itl_ms": 150.0,
    "p99.9_itl_ms": 250.0,
    "median_e2el_ms": 900.0,
}


def made_trials(
    variants: Mapping[str, Mapping[str, float]],
    *,
    rounds: int = 3,
    noise: float = 0.03,
    seed: int = 0,
    classes: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    counters: Mapping[str, Mapping[str, float]] | None = None,
    failed_after: Mapping[str, Sequence[float | None]] | None = None,
    held: Mapping[str, tuple[float, float]] | None = None,
) -> list[Trial]:
    """Of each variant, its figures as multiples of `PLAIN`, with noise of that deviation.

    Args:
        classes: by class and variant, likewise; they have nothing of those of all requests.
        counters: by variant, exact.
        failed_after: by variant, as in `Trial.details`.
        held: by variant, requests that run and the share of the KV blocks that they hold.
    """
    random = Random(seed)
    of = classes or {}

    def figures(factors: Mapping[str, float]) -> dict[str, Any]:
        return {
            key: value * factors.get(key, 1.0) * random.lognormvariate(0, noise)
            for key, value in PLAIN.items()
        } | {"failed": 0, "completed": 4}

    return [
        Trial(
            variant=name,
            round=index,
            seed=index,
            result=figures(factors)
            | {"classes": {kind: figures(own.get(name, {})) for kind, own in of.items()}},
            details=details(list(of) or ["user"], (failed_after or {}).get(name, [None] * 4)),
            samples=samples(*(held or {}).get(name, (8.0, 0.5))),
            counters=(counters or {}).get(name, {}),
            model="a-model",
        )
        for index in range(rounds)
        for name, factors in variants.items()
    ]


def details(classes: Sequence[str], failed_after: Sequence[float | None]) -> dict[str, Any]:
    """By request; as many as `failed_after` has."""
    count = len(failed_after)
    return {
        "class_names": [classes[index % len(classes)] for index in range(count)],
        "input_lens": [10] * count,
        "output_lens": [3] * count,
        "ttfts": [0.1 if after is None else None for after in failed_after],
        "itls": [[0.02, 0.123456789] if after is None else [] for after in failed_after],
        "latencies": [0.25 if after is None else None for after in failed_after],
        "failed_after": list(failed_after),
        "errors": ["" if after is None else "HTTP 429: full" for after in failed_after],
    }


def samples(running: float, kv_usage: float) -> list[Sample]:
    return [
        Sample(at_s=0.25 * i, running=running, waiting=2.0, kv_usage=kv_usage, preemptions=0.0)
        for i in range(4)
    ]
