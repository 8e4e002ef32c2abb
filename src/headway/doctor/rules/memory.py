"""The KV cache: what it finds again, whether it is large enough, and what that costs."""

from __future__ import annotations

from dataclasses import replace

from headway.doctor.finding import Finding, Severity, fine, unjudged
from headway.doctor.readings import Levels, Window
from headway.doctor.rules.wording import amount, more_kv, percent

__all__ = ["evictions", "kv_pressure", "preemptions", "prefix_hit_rate"]

LOW_HIT_RATE = 0.1
GOOD_HIT_RATE = 0.5
_IDEAL = "ideal_prefix_cache"
"""A cache of any size, of which recordings tell."""
LEAST_LOOKUP_TOKENS = 512.0
"""Fewer tell nothing of the load."""
LOST_TO_SIZE = 0.1
"""Share of tokens that a cache of any size would have found, and this one did not."""

PREEMPTIONS_PER_REQUEST = 0.05
PREEMPTION_STORM = 0.5
LEAST_PREEMPTIONS = 3.0

HIGH_USAGE = 0.9
WAITING_FOR_BLOCKS = 0.2
"""Share of the samples in which the queue's head waits for blocks."""

EVICTED_SHARE = 0.25
"""Tokens evicted for each token computed."""


def prefix_hit_rate(window: Window) -> Finding:
    """How much of the prompts is found in the prefix cache."""
    name = "prefix_hit_rate"
    if window.info("enable_prefix_caching") == "False":
        return _caching_off(name, window)
    asked, rate = window.increase("prefix_cache_queries"), window.hit_rate()
    if asked is None:
        return unjudged(name, "the server does not tell what its prefix cache was asked for")
    if rate is None or asked < LEAST_LOOKUP_TOKENS:
        return unjudged(name, f"too few lookups: {amount(asked)} tokens")
    ideal = window.hit_rate(_IDEAL)
    found = f"{percent(rate)} of {amount(asked)} prompt tokens were found in the prefix cache"
    best = "" if ideal is None else f"; a cache of any size would have found {percent(ideal)}"
    figures = {"hit_rate": rate, "lookup_tokens": asked, "ideal_hit_rate": ideal}
    thresholds = {"low": LOW_HIT_RATE, "good": GOOD_HIT_RATE, "lost_to_size": LOST_TO_SIZE}
    good = fine(name, found + best, figures, thresholds)
    if ideal is not None and ideal - rate >= LOST_TO_SIZE:
        return replace(
            good,
            severity=Severity.WARNING,
            cause="prefixes do come again, and their blocks are gone by then: the cache is too "
            "small, or requests with a common prefix lie too far apart",
            advice=(more_kv(window), "--scheduling-policy lpm, which runs equal prefixes together"),
        )
    if rate < LOW_HIT_RATE:
        return replace(
            good,
            severity=Severity.INFO,
            cause="the prompts' beginnings differ too much"
            + ("" if ideal is not None else ", or equal ones go to different servers"),
            advice=(
                "put what is common first in a prompt, and what differs (names, times) last",
                *(() if ideal is not None else ("with several servers, route by prefix",)),
            ),
        )
    judged = "good" if rate > GOOD_HIT_RATE else "neither low nor good"
    return replace(good, what=f"{found}, which is {judged}{best}")


def _caching_off(name: str, window: Window) -> Finding:
    ideal = window.hit_rate(_IDEAL)
    if ideal is not None and ideal < LOW_HIT_RATE:
        what = f"prefix caching is off, and would have found {percent(ideal)} of the prompt tokens"
        return fine(name, what, {"ideal_hit_rate": ideal}, {"low": LOW_HIT_RATE})
    return Finding(
        name=name,
        severity=Severity.INFO if ideal is None else Severity.WARNING,
        what="prefix caching is off"
        + ("" if ideal is None else f"; it could have found {percent(ideal)} of the prompt tokens"),
        cause="an option",
        advice=("--enable-prefix-caching, unless no two prompts begin alike",),
        figures={"ideal_hit_rate": ideal},
        thresholds={"low": LOW_HIT_RATE},
    )


def preemptions(window: Window) -> Finding:
    """Requests that lost their place for want of blocks."""
    name = "preemptions"
    count = window.increase("num_preemptions_by_cause", cause="memory")
    count = window.increase("num_preemptions") if count is None else count
    if count is None:
        return unjudged(name, "the server does not count preemptions")
    requests = window.num_requests
    if not requests:
        return unjudged(name, "no request ran")
    share = count / requests
    figures = {
        "preemptions": count,
        "preemptions_per_request": share,
        "recomputed_tokens": window.increase("recomputed_tokens"),
    }
    thresholds = {"warning": PREEMPTIONS_PER_REQUEST, "critical": PREEMPTION_STORM}
    what = f"{amount(count)} preemptions for memory, of {amount(requests)} requests"
    if count < LEAST_PREEMPTIONS or share < PREEMPTIONS_PER_REQUEST:
        return fine(name, what, figures, thresholds)
    return Finding(
        name=name,
        severity=Severity.CRITICAL if share >= PREEMPTION_STORM else Severity.WARNING,
        what=what,
        cause="capacity: more is running than the KV cache can hold, so work is thrown away and "
        "done again",
        advice=(
            f"{more_kv(window)}, or more instances",
            "a lower --max-num-seqs, or a lower --max-num-queued-reqs where the flood comes in",
            "not a larger --max-num-batched-tokens: it would take blocks faster, not have more",
        ),
        figures=figures,
        thresholds=thresholds,
    )


def kv_pressure(window: Window) -> Finding:
    """Whether requests wait because blocks are short."""
    name = "kv_pressure"
    usage = window.levels("kv_cache_usage_perc")
    waiting = window.levels("num_requests_waiting")
    if usage is None or waiting is None:
        return unjudged(name, "the server does not tell how full its KV cache is")
    by_blocks = _waiting_for_blocks(window)
    if by_blocks is None:
        # vLLM does not say why: a queue beside a full cache is what it looks like.
        short = waiting.share(lambda number: number > 0) if usage.mean >= HIGH_USAGE else 0.0
    else:
        short = by_blocks.share(lambda number: number > 0)
    figures = {"usage_mean": usage.mean, "usage_max": usage.max, "waiting_for_blocks": short}
    thresholds = {"usage": HIGH_USAGE, "waiting_for_blocks": WAITING_FOR_BLOCKS}
    what = (
        f"requests hold {percent(usage.mean)} of the KV blocks ({percent(usage.max)} at most); "
        f"the queue waited for blocks in {percent(short)} of the samples"
    )
    if short >= WAITING_FOR_BLOCKS:
        return Finding(
            name=name,
            severity=Severity.WARNING,
            what=what,
            cause="the KV cache is too small for so many requests at once, or for their length",
            advice=(
                more_kv(window),
                "a lower --max-model-len, if answers need not be as long",
                "more instances",
            ),
            figures=figures,
            thresholds=thresholds,
        )
    return fine(name, what, figures, thresholds)


def _waiting_for_blocks(window: Window) -> Levels | None:
    """Requests behind a head that lacks blocks; None: the server does not say why they wait."""
    told = [
        levels.values
        for reason in ("blocks", "watermark", "preempted")
        if (levels := window.levels("num_requests_waiting_by_reason", reason=reason))
    ]
    return Levels(tuple(map(sum, zip(*told, strict=True)))) if told else None


def evictions(window: Window) -> Finding:
    """Cached blocks that made way, held against what was computed."""
    name = "evictions"
    evicted = window.increase("kv_cache_evictions")
    if evicted is None:
        return unjudged(name, "the server does not count evictions")
    computed = sum(
        window.increase(f"{kind}_tokens") or 0.0 for kind in ("prompt", "generation", "recomputed")
    ) - (window.increase("prefix_cache_hits") or 0.0)
    if computed <= 0:
        return unjudged(name, "nothing was computed")
    share = evicted * (window.limit("block_size") or 1) / computed
    ideal, rate = window.hit_rate(_IDEAL), window.hit_rate() or 0.0
    figures = {"evictions": evicted, "evicted_share": share, "hit_rate": rate}
    thresholds = {"evicted_share": EVICTED_SHARE, "low": LOW_HIT_RATE, "good": GOOD_HIT_RATE}
    what = f"{amount(evicted)} cached blocks made way, {percent(share)} of what was computed"
    if share < EVICTED_SHARE:
        return fine(name, what, figures, thresholds)
    missed = ideal is not None and ideal - rate >= LOST_TO_SIZE
    some = ideal is None and LOW_HIT_RATE <= rate < GOOD_HIT_RATE
    return Finding(
        name=name,
        severity=Severity.WARNING if missed or some else Severity.INFO,
        what=f"{what}; hit rate {percent(rate)}",
        cause="the cache is full, and prefixes that come again may be gone by then"
        if missed or some
        else "the cache is full of what does not come again, or keeps what does",
        advice=(more_kv(window),) if missed or some else (),
        figures=figures,
        thresholds=thresholds,
    )
