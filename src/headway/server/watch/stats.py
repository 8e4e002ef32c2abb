"""What metrics are made of: a small message per step, which may travel between processes.

    EngineCore ─ StepRecord ─▶ StatsObserver ─ StepStats ─▶ PrometheusMetrics, the state's log

`StatsObserver` runs beside the engine, what it makes is read beside the HTTP server. A message
grows with the requests that end in a step, not with those that run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from headway.config import EngineConfig
from headway.metrics import EngineState, PrefixHitRate, RequestRecord, StepRecord

__all__ = ["CacheInfo", "StatsObserver", "StepStats", "StepWork"]


class CacheInfo(msgspec.Struct, frozen=True, array_like=True):
    """The KV cache of an engine, which does not change while it lives."""

    block_size: int
    """Tokens of a block."""
    num_blocks: int
    block_bytes: int
    """What a block takes in memory."""
    dtype: str
    prefix_caching: bool

    @classmethod
    def of(cls, config: EngineConfig) -> CacheInfo:
        return cls(
            config.block_size,
            config.num_kv_blocks,
            config.kv_cache_bytes // config.num_kv_blocks,
            config.kv_cache_dtype,
            config.enable_prefix_caching,
        )


class StepWork(msgspec.Struct, frozen=True, array_like=True):
    """What one step did. Fields without a text are those of `StepRecord`."""

    duration_s: float
    budget: int
    num_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    preemptions: Mapping[str, int]
    evictions: int
    recomputed_tokens: int
    discarded_tokens: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    num_drafts: int
    """Requests that had draft tokens in the step."""
    num_draft_tokens: int
    num_accepted_tokens: int
    failed: bool
    first: tuple[int, int]
    """Of first admissions: tokens that the prefix cache was asked for, and found."""
    again: tuple[int, int]
    """The same of admissions after a preemption."""
    gaps: tuple[tuple[float, int], ...]
    """Seconds since a request's output token before, and how many requests had that gap."""


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """The engine after a step, and what has happened since the message before."""

    time_s: float
    """On the engine's clock."""
    state: EngineState
    waiting_for: str
    """Why the head of the queue waits, as in `StepRecord.waiting`; `new`: it has come since the
    last plan; empty: nobody waits."""
    hit_rate: float | None
    """Share of looked-up tokens found in the prefix cache, over the last 1000 first admissions."""
    work: StepWork | None
    """None: requests ended, and no step was to be run."""
    ended: tuple[RequestRecord, ...]


_MOST_IN_FLIGHT = 2
"""Plans that the engine may have made before a result is applied."""


class StatsObserver:
    """An observer of the engine (`metrics.Observer`) that tells `send` of every step.

    Args:
        state: of the engine, between two steps (`EngineCore.state`).
        now: the engine's clock, in seconds.
        send: called in the step thread, with the engine's lock held: it must not wait.
    """

    def __init__(
        self,
        state: Callable[[], EngineState],
        now: Callable[[], float],
        send: Callable[[StepStats], None],
    ) -> None:
        self._state = state
        self._now = now
        self._send = send
        self._hit_rate = PrefixHitRate()
        self._last_token_s: dict[str, float] = {}
        """By request."""
        self._ended: deque[tuple[str, ...]] = deque(maxlen=_MOST_IN_FLIGHT)
        """Requests that ended with the last calls: plans made before may still have chunks of
        theirs, which come to nothing."""

    def __call__(self, step: StepRecord | None, ended: tuple[RequestRecord, ...]) -> None:
        now, state = self._now(), self._state()
        work = None if step is None else self._work(step, now)
        self._forget(ended)
        waiting_for = ""
        if state.num_waiting:
            waiting_for = next(iter(step.waiting), "new") if step is not None else "new"
        self._send(StepStats(now, state, waiting_for, self._hit_rate.first, work, ended))

    def _forget(self, ended: tuple[RequestRecord, ...]) -> None:
        self._ended.append(tuple(record.request_id for record in ended))
        for names in self._ended:
            for name in names:
                self._last_token_s.pop(name, None)

    def _work(self, step: StepRecord, now: float) -> StepWork:
        lookups = {"first": (0, 0), "again": (0, 0)}
        for admission in step.admissions.values():
            asked, found = lookups[admission.kind]
            lookups[admission.kind] = (
                asked + admission.lookup_tokens,
                found + admission.hit_tokens,
            )
        if step.admissions:
            self._hit_rate.observe(step)
        return StepWork(
            step.duration_s,
            step.budget,
            step.num_tokens,
            step.num_prompt_tokens,
            step.num_output_tokens,
            step.preemptions,
            step.evictions,
            step.recomputed_tokens,
            step.discarded_tokens,
            step.swapped_out_blocks,
            step.swapped_in_blocks,
            sum(chunk.num_drafts > 0 for chunk in step.chunks) if step.num_draft_tokens else 0,
            step.num_draft_tokens,
            step.num_accepted_tokens,
            step.failed,
            lookups["first"],
            lookups["again"],
            () if step.failed else self._gaps(step, now),
        )

    def _gaps(self, step: StepRecord, now: float) -> tuple[tuple[float, int], ...]:
        last, before = self._last_token_s, Counter[float]()
        for chunk in step.chunks:
            if chunk.sample is not None:
                name = chunk.request_id
                if name in last:
                    before[last[name]] += 1
                last[name] = now
        return tuple((now - then, count) for then, count in before.items())
