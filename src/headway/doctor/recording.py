"""A recording (docs/guide/recording.md) as the series that its engine's metrics would have been.

And more than metrics tell: what a cache that never forgets would have hit, for a recording has
the hashes of all blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from os import PathLike

from headway.core.step import WAITING_REASONS
from headway.doctor.series import Buckets, Family, Sample, Series
from headway.errors import SourceError
from headway.record.lines import (
    Added,
    Applied,
    Arrival,
    Ended,
    Finished,
    Left,
    Line,
    Planned,
    Recording,
    Taken,
)
from headway.record.setup import SchedulerConfig

__all__ = ["recorded_series"]

_NUM_SAMPLES = 240
_FIRST_BOUND, _BOUND_RATIO, _NUM_BOUNDS = 1e-4, 1.1, 200
_SECONDS = tuple(_FIRST_BOUND * _BOUND_RATIO**power for power in range(_NUM_BOUNDS))
"""From 0.1 ms to 5 hours, 10 % apart."""
_TOKENS = tuple(float(2**power) * part for power in range(18) for part in (1, 1.25, 1.5, 1.75))


def recorded_series(path: str | PathLike[str], *, last_s: float | None = None) -> Series:
    """The whole recording, or its last seconds; one that was cut as far as it goes.

    Raises InvalidRecording, OSError, and SourceError where nothing was recorded.
    """
    recording = Recording(path, cut_ok=True)
    times = [time_s for line in recording if (time_s := _time(line)) is not None]
    if not times:
        raise SourceError(f"{path} is the recording of an engine that was asked for nothing")
    end, start = times[-1], times[0]
    start = start if last_s is None else max(start, end - last_s)
    step = (end - start) / _NUM_SAMPLES
    meter = _Meter(recording.config)
    samples: list[Sample] = []
    for line in recording:
        time_s = _time(line)
        # What is shown at a moment is what had come of the lines until then.
        while time_s is not None and time_s > (due := start + len(samples) * step):
            samples.append(meter.sample(due))
        meter.take(line)
    samples.append(meter.sample(end))
    return Series(
        source=str(path), engine="", flavour="headway", samples=tuple(samples), recorded=True
    )


def _time(line: Line) -> float | None:
    return None if isinstance(line, Left) else line.time_s


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    arrival: Arrival
    num_known: int
    """Tokens of the prompt, and outputs."""
    num_computed_once: int = 0
    """Of them, those whose KV was in the cache at some time."""
    last_token_s: float | None = None
    is_running: bool = False


@dataclass(slots=True)
class _Histogram:
    bounds: tuple[float, ...]
    counts: Counter[int] = field(default_factory=Counter)
    sum: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Buckets:
        counts = (float(self.counts[index]) for index in range(len(self.bounds) + 1))
        return Buckets((*self.bounds, math.inf), tuple(accumulate(counts)), self.sum)


class _Meter:
    """Counts what the lines of a recording tell."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._live: dict[int, _Live] = {}
        self._planned: dict[int, tuple[Planned, int]] = {}
        """And of its tokens, those of prompts that were never computed before."""
        self._applied_s = -math.inf
        self._seen: set[tuple[str | None, str]] = set()
        """Blocks that a cache of any size would hold, by salt."""
        self._gauges: dict[str, Family] = {}
        self._counters: Counter[tuple[str, tuple[str, str] | None]] = Counter()
        for name in (
            *("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "steps_failed"),
            *("ideal_prefix_cache_queries", "ideal_prefix_cache_hits", "kv_cache_evictions"),
            *("prompt_tokens", "generation_tokens", "recomputed_tokens", "request_success"),
        ):
            self._counters[name, None] = 0
        self._histograms = {
            **{
                name: _Histogram(_SECONDS)
                for name in (
                    *("time_to_first_token_seconds", "inter_token_latency_seconds"),
                    *("request_queue_time_seconds", "step_duration_seconds"),
                )
            },
            "iteration_tokens_total": _Histogram(_TOKENS),
            "request_prompt_tokens": _Histogram(_TOKENS),
            "step_budget_usage": _Histogram(tuple(share / 100 for share in range(1, 101))),
        }
        self._info = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(config.num_kv_blocks),
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "max_num_seqs": str(config.max_num_seqs),
            "max_num_batched_tokens": str(config.max_num_batched_tokens),
        }
        self._set("num_requests_running", 0)
        self._set("num_requests_waiting", 0)

    def sample(self, time_s: float) -> Sample:
        counters: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for (name, label), value in self._counters.items():
            labels = frozenset() if label is None else frozenset([label])
            counters.setdefault(name, {})[labels] = float(value)
        return Sample(
            time_s=time_s,
            gauges=dict(self._gauges),
            counters=counters,
            histograms={name: each.buckets() for name, each in self._histograms.items()},
            info=self._info,
        )

    def take(self, line: Line) -> None:
        match line:
            case Added():
                for arrival in line.requests:
                    self._live[arrival.number] = _Live(arrival, arrival.num_tokens)
            case Planned():
                self._planned[line.step] = line, self._new_prompt_tokens(line)
            case Finished():
                self._end(line.ended)
            case Applied():
                self._apply(line)
        if isinstance(line, Added | Finished | Applied):
            self._show_waiting()

    def _apply(self, line: Applied) -> None:
        for taken in line.records:
            plan, num_prompt_tokens = self._planned.pop(taken.step)
            self._counters["prompt_tokens", None] += num_prompt_tokens
            # Plans overlap: a step is what there is between two results.
            self._count(plan, taken, line.time_s - max(plan.time_s, self._applied_s))
            self._applied_s = line.time_s
            self._note_running(plan, taken)
            if not taken.failed:
                self._advance(plan, line)
        for ended in line.ended:
            self._end(ended)
        self._planned = {step: each for step, each in self._planned.items() if each[0].to_run}

    def _count(self, plan: Planned, taken: Taken, duration_s: float) -> None:
        count, observe = self._counters, self._histograms
        num_tokens = sum(chunk[2] for chunk in plan.chunks)
        observe["iteration_tokens_total"].observe(num_tokens)
        observe["step_budget_usage"].observe(num_tokens / self._config.max_num_batched_tokens)
        observe["step_duration_seconds"].observe(duration_s)
        count["steps_failed", None] += taken.failed
        count["kv_cache_evictions", None] += taken.evictions
        count["recomputed_tokens", None] += taken.recomputed_tokens
        count["num_preemptions", None] += sum(taken.preemptions.values())
        for cause in ("memory", "priority"):
            count["num_preemptions_by_cause", ("cause", cause)] += taken.preemptions.get(cause, 0)
        for number, kind, lookup, hit in taken.admissions:
            if kind == "first" and number in self._live:
                self._admit(self._live[number].arrival, plan.time_s, lookup, hit)
        num_blocks = taken.blocks_used + taken.blocks_cached + taken.blocks_free
        self._set("num_requests_running", taken.num_running)
        self._set("kv_cache_usage_perc", taken.blocks_used / num_blocks)
        self._set("kv_cache_cached_perc", taken.blocks_cached / num_blocks)
        self._gauges["num_requests_waiting_by_reason"] = {
            frozenset([("reason", reason)]): float(taken.waiting.get(reason, 0))
            for reason in WAITING_REASONS
        }

    def _new_prompt_tokens(self, plan: Planned) -> int:
        count = 0
        for number, start, num_tokens in plan.chunks:
            live = self._live.get(number)
            if live is not None:
                end = min(start + num_tokens, live.arrival.num_tokens)
                first = max(start, live.num_computed_once)
                count += max(0, end - first)
                live.num_computed_once = max(live.num_computed_once, end)
        return count

    def _note_running(self, plan: Planned, taken: Taken) -> None:
        """Who lost its place is not told by name: it ran, and the plan that took it away gives it
        nothing."""
        given = {number for number, _, _ in plan.chunks}
        admitted = {number for number, *_ in taken.admissions}
        for number, live in self._live.items():
            if taken.failed and number in given:
                live.is_running = False
            elif number in admitted:
                live.is_running = True
            elif taken.preemptions and number not in given:
                live.is_running = False

    def _admit(self, arrival: Arrival, time_s: float, lookup: int, hit: int) -> None:
        """Its first admission, which is when it asks the cache."""
        count = self._counters
        self._histograms["request_queue_time_seconds"].observe(time_s - arrival.arrival_s)
        self._histograms["request_prompt_tokens"].observe(arrival.num_tokens)
        count["prefix_cache_queries", None] += lookup
        count["prefix_cache_hits", None] += hit
        count["prompt_tokens", None] += hit
        chain = [(arrival.salt, block) for block in arrival.blocks]
        if lookup or not self._config.enable_prefix_caching:
            size = self._config.block_size
            found = sum(1 for _ in takewhile(self._seen.__contains__, chain))
            # One token is always computed, and hits are whole blocks.
            most = (arrival.num_tokens - 1) // size
            count["ideal_prefix_cache_queries", None] += arrival.num_tokens
            count["ideal_prefix_cache_hits", None] += min(found, most) * size
        self._seen.update(chain)

    def _advance(self, plan: Planned, line: Applied) -> None:
        """Who got tokens: those whose chunk reached the end of what was known of them."""
        for number, start, num_tokens in plan.chunks:
            live = self._live.get(number)
            if live is None or number in line.errors:
                continue
            if start + num_tokens - plan.drafts.get(number, 0) < live.num_known:
                continue
            gained = 1 + line.accepted.get(number, 0)
            live.num_known += gained
            self._counters["generation_tokens", None] += gained
            if live.last_token_s is None:
                seconds = line.time_s - live.arrival.arrival_s
                self._histograms["time_to_first_token_seconds"].observe(seconds)
            else:
                seconds = line.time_s - live.last_token_s
                self._histograms["inter_token_latency_seconds"].observe(seconds)
            live.last_token_s = line.time_s

    def _end(self, ended: Ended) -> None:
        live = self._live.pop(ended.number, None)
        if live is not None:
            self._seen.update((live.arrival.salt, block) for block in ended.blocks)
            if live.is_running:
                self._set("num_requests_running", max(0.0, self._running - 1))
        self._counters["request_success", ("finished_reason", ended.reason)] += 1

    @property
    def _running(self) -> float:
        return self._gauges.get("num_requests_running", {}).get(frozenset(), 0.0)

    def _show_waiting(self) -> None:
        """Those that do not run: all others that have not ended."""
        self._set("num_requests_waiting", max(0.0, len(self._live) - self._running))

    def _set(self, name: str, value: float) -> None:
        self._gauges[name] = {frozenset(): float(value)}
