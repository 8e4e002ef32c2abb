"""The queue: whether what comes is more than what goes, and what holds it up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headway.core.step import WAITING_REASONS
from headway.doctor.finding import Finding, Severity, fine, unjudged
from headway.doctor.readings import Window, trend
from headway.doctor.rules.memory import HIGH_USAGE
from headway.doctor.rules.wording import amount, more_kv, percent, seconds

__all__ = ["queue_time", "running_at_limit", "waiting_empty", "waiting_growing"]

AT_LIMIT = 0.5
"""Share of the samples in which the queue waits because `max_num_seqs` are running."""
CONSTANT = 0.8
"""The same where it is inferred: as many run as ever did, others wait, and blocks are there."""

SIGNIFICANT_Z = 2.6
"""Of bins that are independent chance makes such a rise once in 200 windows. Those of a queue are
not quite: at 90 % load with requests of 10 s, once in 20 windows of a minute."""
GROWTH_PER_SERVED = 0.05
"""Requests by which the queue grows, for each that is served."""
LEAST_GROWTH = 2.0
STILL_RISING = 0.2
"""Of a steady rise's last quarter, at least this."""

QUEUE_SHARE = 0.5
QUEUED_SAMPLES = 0.2
LEAST_REQUESTS = 5.0

_HELD_UP: Mapping[str, str] = MappingProxyType(
    {
        "width": "--max-num-seqs are running: see running_at_limit",
        "blocks": "KV blocks are short: see kv_pressure",
        "watermark": "KV blocks are short: see kv_pressure",
        "preempted": "KV blocks are short: see preemptions",
        "budget": "steps are full: raise --max-num-batched-tokens, as far as ITL allows",
        "prefix": "it waits for a prefix that another computes, and will find it cached",
        "isolated": "a step failed, and its requests run one at a time: see steps_failed",
        "new": "nothing but the step under way: a lower --max-num-batched-tokens shortens it",
        "": "a larger --max-num-batched-tokens, as far as ITL allows",
    }
)


def running_at_limit(window: Window) -> Finding:
    """Requests wait for a slot, and for nothing else."""
    name = "running_at_limit"
    running = window.levels("num_requests_running")
    waiting = window.levels("num_requests_waiting")
    usage = window.levels("kv_cache_usage_perc")
    if running is None or waiting is None:
        return unjudged(name, "the server does not tell how many requests run and wait")
    limit = window.limit("max_num_seqs")
    by_width = window.levels("num_requests_waiting_by_reason", reason="width")
    full = usage.mean if usage else 0.0
    if by_width is not None or window.series.flavour == "headway":
        at_limit = by_width.share(lambda number: number > 0) if by_width else 0.0
        threshold = AT_LIMIT
    else:
        # vLLM tells neither its limit nor why requests wait.
        queued = waiting.share(lambda number: number > 0)
        constant = running.share(lambda number: number >= running.max)
        at_limit = min(queued, constant) if running.max and full < HIGH_USAGE else 0.0
        threshold = CONSTANT
    figures = {
        "at_limit": at_limit,
        "running_max": running.max,
        "waiting_mean": waiting.mean,
        "max_num_seqs": limit,
        "kv_usage_mean": full,
    }
    thresholds = {"at_limit": threshold, "kv_usage": HIGH_USAGE}
    if at_limit < threshold:
        what = f"{amount(running.mean)} requests were running, {amount(running.max)} at most"
        return fine(name, what, figures, thresholds)
    of = f"max_num_seqs {limit}" if limit else f"{amount(running.max)}"
    return Finding(
        name=name,
        severity=Severity.WARNING,
        what=f"running was at its limit ({of}) in {percent(at_limit)} of the samples, while "
        f"{amount(waiting.mean)} waited; requests held {percent(full)} of the KV blocks",
        cause="--max-num-seqs is too low for this load",
        advice=(
            "a higher --max-num-seqs, as far as ITL allows"
            if full < HIGH_USAGE
            else f"first {more_kv(window)}, then a higher --max-num-seqs",
            "more instances, where ITL allows no more requests at once",
        ),
        figures=figures,
        thresholds=thresholds,
    )


def waiting_growing(window: Window) -> Finding:
    """More requests come than are served."""
    name = "waiting_growing"
    waiting = window.levels("num_requests_waiting")
    if waiting is None:
        return unjudged(name, "the server does not tell how many requests wait")
    running = window.levels("num_requests_running")
    # Who is preempted waits too, and has not come: all that are there must grow in number.
    present = (
        [sum(both) for both in zip(waiting.values, running.values, strict=True)]
        if running is not None and len(running.values) == len(waiting.values)
        else waiting.values
    )
    queue, all_of_them = trend(waiting.values), trend(present)
    served = window.increase("request_success") or 0.0
    # Between the middles of the first quarter and of the last there are three.
    growth = min(queue.rise, all_of_them.rise) * 4 / 3
    z = min(queue.z, all_of_them.z)
    figures = {"growth": growth, "z": z, "waiting_max": waiting.max, "served": served}
    thresholds = {
        "z": SIGNIFICANT_Z,
        "growth_per_served": GROWTH_PER_SERVED,
        "growth": LEAST_GROWTH,
    }
    grows = (
        z >= SIGNIFICANT_Z
        and growth >= max(LEAST_GROWTH, GROWTH_PER_SERVED * served)
        and queue.late_rise >= STILL_RISING * queue.rise / 3
    )
    if not grows:
        what = f"{amount(waiting.mean)} requests waited, {amount(waiting.max)} at most"
        return fine(name, what, figures, thresholds)
    reason = _held_up_by(window)
    return Finding(
        name=name,
        severity=Severity.WARNING,
        what=f"the queue grew by {amount(growth)} requests while {amount(served)} were served, and "
        f"goes on growing; {amount(waiting.values[-1])} wait",
        cause="requests arrive faster than they are served"
        + (f"; what holds up the first is {reason!r}" if reason else ""),
        advice=(
            _HELD_UP[reason],
            "then more instances",
            "--max-num-queued-reqs, so that who would wait too long is told at once",
        ),
        figures=figures,
        thresholds=thresholds,
    )


def _held_up_by(window: Window) -> str:
    """What held up the head of the queue for most of the window; empty where nobody says."""
    sums = {
        reason: sum(levels.values)
        for reason in WAITING_REASONS
        if (levels := window.levels("num_requests_waiting_by_reason", reason=reason))
    }
    reason = max(sums, key=sums.__getitem__, default="")
    return reason if sums.get(reason) else ""


def waiting_empty(window: Window) -> Finding:
    """Nobody ever waits."""
    name = "waiting_empty"
    waiting = window.levels("num_requests_waiting")
    if waiting is None:
        return unjudged(name, "the server does not tell how many requests wait")
    queued = waiting.share(lambda number: number > 0)
    figures, thresholds = {"queued_samples": queued}, {"queued_samples": 0.0}
    if queued:
        what = f"somebody waited in {percent(queued)} of the samples"
        return fine(name, what, figures, thresholds)
    return Finding(
        name=name,
        severity=Severity.INFO,
        what="nobody waited in any sample",
        cause="there is capacity to spare for this load",
        advice=("nothing needs changing; it could serve more, or run with less",),
        figures=figures,
        thresholds=thresholds,
    )


def queue_time(window: Window) -> Finding:
    """How much of the time to the first token is waiting to be admitted."""
    name = "queue_time"
    queue = window.distribution("request_queue_time_seconds")
    ttft = window.distribution("time_to_first_token_seconds")
    waiting = window.levels("num_requests_waiting")
    if queue is None or ttft is None or waiting is None:
        return unjudged(name, "no request ended whose time in the queue is known")
    if min(queue.count, ttft.count) < LEAST_REQUESTS:
        return unjudged(name, f"too few requests: {amount(min(queue.count, ttft.count))}")
    share = min(1.0, queue.mean / ttft.mean) if ttft.mean else 0.0
    queued = waiting.share(lambda number: number > 0)
    figures = {
        "queue_share": share,
        "queue_time_p50_s": queue.quantile(0.5),
        "queue_time_p99_s": queue.quantile(0.99),
        "ttft_p50_s": ttft.quantile(0.5),
        "queued_samples": queued,
    }
    thresholds = {"queue_share": QUEUE_SHARE, "queued_samples": QUEUED_SAMPLES}
    what = (
        f"{percent(share)} of the time to the first token was spent in the queue "
        f"(p50 {seconds(queue.quantile(0.5))}, p99 {seconds(queue.quantile(0.99))})"
    )
    # A request also waits for the step that is under way, where nobody queues at all.
    if share < QUEUE_SHARE or queued < QUEUED_SAMPLES:
        return fine(name, what, figures, thresholds)
    reason = _held_up_by(window)
    return Finding(
        name=name,
        severity=Severity.WARNING,
        what=what,
        cause="requests wait to be admitted longer than their prompts take"
        + (f"; what holds up the first is {reason!r}" if reason else ""),
        advice=(
            _HELD_UP[reason],
            "then more instances",
        ),
        figures=figures,
        thresholds=thresholds,
    )
