"""States of an engine, and what a doctor must say of each."""

from __future__ import annotations

from collections.abc import Callable

from headway.doctor.finding import Finding, Severity
from headway.doctor.series import Series
from unit.doctor.made import NUM, made

GROWING = tuple(float(index) for index in range(NUM))
FULL = {"num_requests_running": 8.0, "num_requests_waiting": 6.0}
SHORT = {"kv_cache_usage_perc": 0.97, "num_requests_waiting": 4.0}
IDLE_GAUGES = {"num_requests_running": 0.0, "num_requests_waiting": 0.0}


def idle(**changes: object) -> Series:
    """Nobody asks it for anything."""
    nothing = dict.fromkeys(
        (
            *("request_success{finished_reason=stop}", "prompt_tokens", "generation_tokens"),
            *("prefix_cache_queries", "prefix_cache_hits"),
        ),
        0.0,
    )
    return made(IDLE_GAUGES, nothing, dict.fromkeys(QUIET, ()), **changes)  # type: ignore[arg-type]


QUIET = (
    *("request_queue_time_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("iteration_tokens_total", "request_prompt_tokens"),
)

STATES: dict[str, tuple[Callable[..., Series], dict[str, str]]] = {
    "healthy": (made, {}),
    "healthy, of vLLM": (lambda **o: made(flavour="vllm", **o), {}),
    "no prefixes in common": (
        lambda **o: made(counters={"prefix_cache_hits": 40}, **o),
        {"prefix_hit_rate": "info"},
    ),
    "a cache too small for its prefixes": (
        lambda **o: made(
            counters={
                "prefix_cache_hits": 160,
                "ideal_prefix_cache_queries": 800,
                "ideal_prefix_cache_hits": 600,
                "kv_cache_evictions": 40,
            },
            **o,
        ),
        {"prefix_hit_rate": "warning", "evictions": "warning"},
    ),
    "caching off": (
        lambda **o: made(
            counters={"prefix_cache_queries": 0, "prefix_cache_hits": 0},
            info={"enable_prefix_caching": "False"},
            **o,
        ),
        {"prefix_hit_rate": "info"},
    ),
    "a full cache of what never comes again": (
        lambda **o: made(counters={"kv_cache_evictions": 40, "prefix_cache_hits": 560}, **o),
        {"evictions": "info"},
    ),
    "some preemptions": (
        lambda **o: made(counters={"num_preemptions_by_cause{cause=memory}": 0.5}, **o),
        {"preemptions": "warning"},
    ),
    "a storm of them": (
        lambda **o: made(counters={"num_preemptions_by_cause{cause=memory}": 8}, **o),
        {"preemptions": "critical"},
    ),
    "preemptions of vLLM": (
        lambda **o: made(counters={"num_preemptions": 0.5}, flavour="vllm", **o),
        {"preemptions": "warning"},
    ),
    "preemptions that were asked for": (
        lambda **o: made(
            counters={"num_preemptions": 4, "num_preemptions_by_cause{cause=priority}": 4}, **o
        ),
        {},
    ),
    "at the limit": (
        lambda **o: made(FULL, reasons={"width": 6.0}, **o),
        {"running_at_limit": "warning"},
    ),
    "at the limit, of vLLM": (
        lambda **o: made(FULL, flavour="vllm", **o),
        {"running_at_limit": "warning"},
    ),
    "at the limit, and nobody waits": (
        lambda **o: made({"num_requests_running": 8.0}, flavour="vllm", **o),
        {},
    ),
    "more than it can serve": (
        lambda **o: made({"num_requests_waiting": GROWING}, reasons={"budget": GROWING}, **o),
        {"waiting_growing": "warning"},
    ),
    "a flood that came once": (
        lambda **o: made({"num_requests_waiting": (0.0,) * 10 + (30.0,) * 31}, **o),
        {},
    ),
    "running ones that wait again": (
        lambda **o: made(
            {"num_requests_waiting": GROWING, "num_requests_running": GROWING[::-1]}, **o
        ),
        {},
    ),
    "stalls by preemptions": (
        lambda **o: made(
            counters={"num_preemptions": 0.1, "num_preemptions_by_cause{cause=memory}": 0.1},
            times={
                "inter_token_latency_seconds": (0.03,) * 190 + (3.0,) * 10,
                "iteration_tokens_total": (8,) * 9 + (2048,),
                "step_duration_seconds": (0.03,) * 9 + (0.5,),
            },
            **o,
        ),
        {"itl_stalls": "warning"},
    ),
    "a queue that shrinks": (
        lambda **o: made({"num_requests_waiting": GROWING[::-1]}, **o),
        {},
    ),
    "an empty queue": (
        lambda **o: made({"num_requests_waiting": 0.0}, **o),
        {"waiting_empty": "info"},
    ),
    "short of blocks": (
        lambda **o: made(SHORT, reasons={"blocks": 4.0}, **o),
        {"kv_pressure": "warning"},
    ),
    "short of blocks, of vLLM": (
        lambda **o: made(SHORT, flavour="vllm", **o),
        {"kv_pressure": "warning"},
    ),
    "a full cache that is enough": (
        lambda **o: made({"kv_cache_usage_perc": 0.97}, **o),
        {},
    ),
    "long in the queue": (
        lambda **o: made(
            {"num_requests_waiting": (3.0, 4.0) * 20 + (3.0,)},
            times={"request_queue_time_seconds": (0.08, 0.1, 0.09, 0.1)},
            reasons={"budget": 3.0},
            **o,
        ),
        {"queue_time": "warning"},
    ),
    "stalls by long prompts": (
        lambda **o: made(
            times={
                "inter_token_latency_seconds": (0.03,) * 190 + (0.6,) * 10,
                "iteration_tokens_total": (8,) * 9 + (2048,),
                "request_prompt_tokens": (200,) * 3 + (6000,),
            },
            **o,
        ),
        {"itl_stalls": "warning"},
    ),
    "stalls by many prompts in one step": (
        lambda **o: made(
            times={
                "inter_token_latency_seconds": (0.03,) * 190 + (0.6,) * 10,
                "iteration_tokens_total": (8,) * 9 + (2048,),
            },
            **o,
        ),
        {"itl_stalls": "warning"},
    ),
    "stalls by not large steps": (
        lambda **o: made(times={"inter_token_latency_seconds": (0.03,) * 190 + (0.6,) * 10}, **o),
        {"itl_stalls": "warning"},
    ),
    "stalls by preemptions of vLLM": (
        lambda **o: made(
            counters={"num_preemptions": 0.1},
            times={
                "inter_token_latency_seconds": (0.03,) * 190 + (3.0,) * 10,
                "iteration_tokens_total": (8,) * 9 + (2048,),
                "request_prompt_tokens": (200,) * 3 + (6000,),
            },
            flavour="vllm",
            **o,
        ),
        {"itl_stalls": "warning"},
    ),
    "stalls that nobody sees": (
        lambda **o: made(times={"inter_token_latency_seconds": (0.003,) * 190 + (0.06,) * 10}, **o),
        {},
    ),
    "a few refused": (
        lambda **o: made(counters={"request_errors{code=queue_full}": 0.25}, **o),
        {"rejections": "warning"},
    ),
    "a flood that is refused": (
        lambda **o: made(counters={"request_errors{code=queue_full}": 12}, **o),
        {"rejections": "critical"},
    ),
    "failed steps": (
        lambda **o: made(counters={"steps_failed": (0.0,) * 20 + (1.0,) + (0.0,) * 20}, **o),
        {"steps_failed": "warning"},
    ),
    "steps that all fail": (
        lambda **o: made(counters={"steps_failed": 9}, **o),
        {"steps_failed": "critical"},
    ),
    "requests that contradict themselves": (
        lambda **o: made(counters={"request_success{finished_reason=error}": 1}, **o),
        {},
    ),
    "requests that fail alone": (
        lambda **o: made(counters={"request_errors{code=generation_failed}": 1}, **o),
        {"steps_failed": "warning"},
    ),
    "cached blocks that make way for what is found again": (
        lambda **o: made(counters={"kv_cache_evictions": 10, "prefix_cache_hits": 600}, **o),
        {"evictions": "info"},
    ),
    "failed requests of vLLM": (
        lambda **o: made(
            counters={"request_success{finished_reason=error}": 1}, flavour="vllm", **o
        ),
        {"steps_failed": "warning"},
    ),
    "an engine that was replaced": (
        lambda **o: made(counters={"engine_restarts": (0.0,) * 20 + (1.0,) + (0.0,) * 20}, **o),
        {"engine_lost": "warning"},
    ),
    "idle": (idle, {"no_traffic": "info"}),
}


def of(findings: list[Finding], name: str) -> Finding:
    """The one of that name."""
    (found,) = (each for each in findings if each.name == name)
    return found


def fired(findings: list[Finding]) -> dict[str, str]:
    """Those that say something, with their severities."""
    return {
        each.name: each.severity.name.lower() for each in findings if each.severity >= Severity.INFO
    }
