"""Pauses within answers."""

from __future__ import annotations

from headway.doctor.finding import Finding, Severity, fine, unjudged
from headway.doctor.readings import Window
from headway.doctor.rules.wording import amount, seconds

__all__ = ["itl_stalls"]

STALL_RATIO = 5.0
"""The 99th percentile of ITL, in medians."""
SEEN_S = 0.1
"""A shorter pause is not noticed."""
LEAST_GAPS = 100.0
LARGE_STEP_RATIO = 4.0
"""The 99th percentile of a step's tokens, in medians: then prompts are what makes it long."""
ONE_PROMPT = 0.5
"""Share of a large step that one prompt can fill: else it takes several."""
STEP_RATIO = 2.0
"""Gaps that are longer than the longest steps by this are not made by steps."""


def itl_stalls(window: Window) -> Finding:
    """Few gaps between tokens that are far longer than the others."""
    name = "itl_stalls"
    gaps = window.distribution("inter_token_latency_seconds")
    if gaps is None:
        return unjudged(name, "no gap between two tokens was measured")
    if gaps.count < LEAST_GAPS:
        return unjudged(name, f"too few tokens: {amount(gaps.count)} gaps between two")
    median, tail = gaps.quantile(0.5), gaps.quantile(0.99)
    steps = window.distribution("iteration_tokens_total")
    prompts = window.distribution("request_prompt_tokens")
    figures = {
        "itl_p50_s": median,
        "itl_p99_s": tail,
        "step_tokens_p50": steps.quantile(0.5) if steps else None,
        "step_tokens_p99": steps.quantile(0.99) if steps else None,
        "prompt_tokens_p99": prompts.quantile(0.99) if prompts else None,
    }
    thresholds = {"ratio": STALL_RATIO, "itl_p99_s": SEEN_S, "step_tokens": LARGE_STEP_RATIO}
    what = f"time between tokens: p50 {seconds(median)}, p99 {seconds(tail)}"
    if tail < SEEN_S or tail < STALL_RATIO * median:
        return fine(name, what, figures, thresholds)
    cause, advice = _cause(window, tail)
    return Finding(
        name=name,
        severity=Severity.WARNING,
        what=f"{what}, which is {amount(round(tail / median))} times as long",
        cause=cause,
        advice=advice,
        figures=figures,
        thresholds=thresholds,
    )


def _cause(window: Window, tail_s: float) -> tuple[str, tuple[str, ...]]:
    """Of gaps so long, and what to do about it."""
    steps = window.distribution("iteration_tokens_total")
    durations = window.distribution("step_duration_seconds")
    by_steps = durations is not None and tail_s <= STEP_RATIO * durations.quantile(0.99)
    if window.increase("num_preemptions") and not by_steps:
        return (
            "preemptions: a request in the middle of its answer waits to be run again",
            ("see preemptions",),
        )
    if steps is not None and steps.quantile(0.99) >= LARGE_STEP_RATIO * steps.quantile(0.5):
        return _by_prompts(window, steps.quantile(0.5), steps.quantile(0.99))
    return (
        "not large steps: other load on the machine, or a client that holds up the server",
        ("look at what else runs on the machine",),
    )


def _by_prompts(window: Window, median: float, large: float) -> tuple[str, tuple[str, ...]]:
    """Steps of `large` tokens, where most have no more than `median`."""
    sizes = f"{amount(large)} tokens, others {amount(median)}"
    shorter = "a lower --max-num-batched-tokens, which makes every step shorter"
    prompts = window.distribution("request_prompt_tokens")
    least = max(LARGE_STEP_RATIO * median, ONE_PROMPT * large)
    if prompts is not None and prompts.quantile(0.99) >= least:
        return (
            f"long prompts: steps that compute a part of one take {sizes}",
            (
                "--long-prefill-token-threshold, which gives long prompts smaller parts of a step",
                shorter,
            ),
        )
    return f"many prompts in one step: such steps take {sizes}", (shorter,)
