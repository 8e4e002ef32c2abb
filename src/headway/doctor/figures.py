"""What was seen of an engine, in the figures that people know."""

from __future__ import annotations

from headway.doctor.finding import Figures
from headway.doctor.readings import Window

__all__ = ["figures"]

_LEVELS = (
    ("running", "num_requests_running"),
    ("waiting", "num_requests_waiting"),
    ("kv_usage", "kv_cache_usage_perc"),
)
_RATES = (
    ("requests_per_s", "request_success"),
    ("prompt_tokens_per_s", "prompt_tokens"),
    ("output_tokens_per_s", "generation_tokens"),
    ("preemptions_per_s", "num_preemptions"),
)
_TIMES = (
    ("queue_time", "request_queue_time_seconds"),
    ("ttft", "time_to_first_token_seconds"),
    ("itl", "inter_token_latency_seconds"),
)


def figures(window: Window) -> Figures:
    """By name; None: the engine does not tell it, or nothing of the kind happened. Shares are in
    [0, 1], times in seconds."""
    found: dict[str, float | None] = {}
    for name, metric in _LEVELS:
        levels = window.levels(metric)
        found[f"{name}_mean"] = levels.mean if levels else None
        found[f"{name}_max"] = levels.max if levels else None
    found.update((name, window.rate(metric)) for name, metric in _RATES)
    found["hit_rate"] = window.hit_rate()
    for name, metric in _TIMES:
        times = window.distribution(metric)
        for share in (50, 99):
            found[f"{name}_p{share}_s"] = times.quantile(share / 100) if times else None
    return found
