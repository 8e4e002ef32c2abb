"""What was measured under load, in the terms of `vllm bench serve`: names, units, definitions.

Times of a request are those of `Outcome`. A request that failed is counted and is in no mean, no
percentile and no token count. Where there is nothing to take a mean of, it is None (vLLM: 0).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.bench.load import Outcome, Run

__all__ = ["METRICS", "Wanted", "details", "figures", "percentile_key"]

METRICS: Mapping[str, str] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
    "client_queue_time": "Client-side Queueing",
    "e2el_including_client_queue": "Queue-inclusive End-to-end Latency",
}
"""Those that may be asked for, by vLLM's names. The last two are about requests that wait in the
client for `max_concurrency`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to report."""

    metrics: tuple[str, ...]
    """Names of `METRICS`."""
    percentiles: tuple[float, ...]
    """In [0, 100], of each of them."""
    goodput: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds by `ttft`, `tpot` and `e2el` within which a request is good; empty: any."""


def figures(
    runs: Sequence[Run], wanted: Wanted, *, class_name: str | None = None
) -> dict[str, Any]:
    """All runs pooled: their requests together, their durations added.

    Args:
        runs: of one workload; at least one.
        wanted: what to report.
        class_name: only requests of that class; None: all.
    """
    picked = [[each for each in run.outcomes if _of(each, class_name)] for run in runs]
    every = [outcome for outcomes in picked for outcome in outcomes]
    good = [outcome for outcome in every if outcome.error is None]
    duration = sum(run.duration_s for run in runs)
    total_input, total_output = sum(map(_input_len, good)), sum(each.output_len for each in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(every) - len(good),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(good) / duration,
        "request_goodput": _num_within(good, wanted.goodput) / duration if wanted.goodput else None,
        "output_throughput": total_output / duration,
        "total_token_throughput": (total_input + total_output) / duration,
        "max_output_tokens_per_s": max(map(_busiest_second, picked)),
        "max_concurrent_requests": max(map(_most_at_once, picked)),
    }
    for name in wanted.metrics:
        result |= _statistics(name, _values(name, good), wanted.percentiles)
    return result | _own(every, good)


def details(runs: Sequence[Run]) -> dict[str, Any]:
    """By request, in order of arrival; a failed one has None for its times (vLLM: 0). A turn that
    was never sent has None for `failed_after` and `queue_times` too, and as its start the moment
    at which it was given up."""
    every = [outcome for run in runs for outcome in run.outcomes]
    ok = [outcome.error is None for outcome in every]
    return {
        "input_lens": [_input_len(each) for each in every],
        "output_lens": [
            each.output_len if fine else 0 for each, fine in zip(every, ok, strict=True)
        ],
        "ttfts": [each.ttft_s if fine else None for each, fine in zip(every, ok, strict=True)],
        "itls": [each.itls_s if fine else [] for each, fine in zip(every, ok, strict=True)],
        "latencies": [each.e2el_s if fine else None for each, fine in zip(every, ok, strict=True)],
        "start_times": [each.sent_s for each in every],
        "queue_times": [None if each.unsent else each.sent_s - each.arrival_s for each in every],
        "generated_texts": ["".join(each.texts) for each in every],
        "errors": [each.error or "" for each in every],
        "class_names": [each.item.class_name for each in every],
        "failed_after": [
            None if fine or each.unsent else each.ended_s - each.sent_s
            for each, fine in zip(every, ok, strict=True)
        ],
    }


def percentile_key(percentile: float) -> str:
    """`99`, `99.9`"""
    return f"{percentile:g}"


def _of(outcome: Outcome, class_name: str | None) -> bool:
    return class_name is None or outcome.item.class_name == class_name


def _input_len(outcome: Outcome) -> int:
    return outcome.prompt_tokens or outcome.asked_len or outcome.item.input_len


def _values(name: str, good: Sequence[Outcome]) -> list[float]:
    """Seconds, one for each request, or for `itl` one for each gap."""
    match name:
        case "ttft":
            return [each.ttft_s for each in good]
        case "tpot":
            return [value for each in good if (value := each.tpot_s) is not None]
        case "itl":
            return [gap for each in good for gap in each.itls_s]
        case "e2el":
            return [each.e2el_s for each in good]
        case "client_queue_time":
            return [each.sent_s - each.arrival_s for each in good]
        case _:
            return [each.e2el_s + each.sent_s - each.arrival_s for each in good]


def _statistics(
    name: str, seconds: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float | None]:
    """In milliseconds; the deviation is that of the values themselves, not an estimate."""
    keys = [f"{what}_{name}_ms" for what in ("mean", "median", "std")]
    keys += [f"p{percentile_key(percentile)}_{name}_ms" for percentile in percentiles]
    if not seconds:
        return dict.fromkeys(keys)
    values = np.asarray(seconds) * 1e3
    found = [values.mean(), np.median(values), values.std()]
    found += [np.percentile(values, percentile) for percentile in percentiles]
    return dict(zip(keys, map(float, found), strict=True))


def _num_within(good: Sequence[Outcome], goodput: Mapping[str, float]) -> int:
    """A request of one token has no TPOT, and so a good one."""

    def within(outcome: Outcome) -> bool:
        values = {
            "ttft": outcome.ttft_s,
            "tpot": outcome.tpot_s or 0.0,
            "e2el": outcome.e2el_s,
        }
        return all(values[name] * 1e3 <= most for name, most in goodput.items())

    return sum(map(within, good))


def _busiest_second(outcomes: Sequence[Outcome]) -> float:
    """Output tokens in the fullest second, counted from the first request on. The tokens of a
    request are spread evenly over its chunks."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    tokens: defaultdict[int, float] = defaultdict(float)
    start = min((outcome.sent_s for outcome in good), default=0.0)
    for outcome in good:
        share = outcome.output_len / len(outcome.chunk_times_s)
        for time in outcome.chunk_times_s:
            tokens[int(time - start)] += share
    return max(tokens.values(), default=0.0)


def _most_at_once(outcomes: Sequence[Outcome]) -> int:
    """Of the requests that completed; one that ends as another is sent is not beside it."""
    events = []
    for outcome in outcomes:
        if outcome.error is None:
            events += [(outcome.sent_s, 1), (outcome.chunk_times_s[-1], -1)]
    most = now = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


def _own(every: Sequence[Outcome], good: Sequence[Outcome]) -> dict[str, Any]:
    """What vLLM does not report."""
    sent = [each for each in every if not each.unsent]
    late = [max(0.0, each.sent_s - each.due_s) * 1e3 for each in sent] or [math.nan]
    chunks = sum(len(each.chunk_times_s) for each in good)
    said = sum(each.completion_tokens is not None for each in good)
    counted = "usage" if said == len(good) else "chunks" if not said else "usage, else chunks"
    cached = [each.cached_tokens for each in good if each.cached_tokens is not None]
    lengths = [(each.prompt_tokens, each.asked_len) for each in good]
    return {
        "mean_lateness_ms": float(np.mean(late)),
        "p99_lateness_ms": float(np.percentile(late, 99)),
        "max_lateness_ms": float(max(late)),
        "token_counts": counted,
        "tokens_per_chunk": sum(each.output_len for each in good) / chunks if chunks else None,
        "total_cached_tokens": sum(cached) if cached else None,
        "wrong_input_lens": sum(None not in pair and pair[0] != pair[1] for pair in lengths),
        "made_up_answers": sum(each.made_up for each in good),
        "short_outputs": sum(each.output_len < each.item.output_len for each in good),
        "error_counts": dict(Counter(each.error for each in every if each.error is not None)),
    }
