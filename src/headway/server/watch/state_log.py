"""A line about the engine every few seconds while it works."""

from __future__ import annotations

import logging
import math

from headway.server.watch.stats import StepStats

__all__ = ["StateLog"]

_logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class StateLog:
    """Takes the engine's `StepStats`, whose times are its clock.

    A line tells of the time since the one before, or since work came after as long a pause as
    `interval_s`; so traffic that ends sooner leaves none.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._idle_since_s: float | None = -math.inf
        """None: there is work."""
        self._begin(-math.inf)

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._num_prompt = self._num_output = self._num_preemptions = self._num_ended = 0

    def observe(self, stats: StepStats) -> None:
        work = stats.work
        since_s = stats.time_s - (0.0 if work is None else work.duration_s)
        if self._idle_since_s is not None and since_s - self._idle_since_s >= self._interval_s:
            self._begin(since_s)
        if work is not None:
            self._num_prompt += work.num_prompt_tokens + work.first[1]
            self._num_output += work.num_output_tokens
            self._num_preemptions += sum(work.preemptions.values())
        self._num_ended += len(stats.ended)
        if (elapsed_s := stats.time_s - self._began_s) >= self._interval_s:
            self._log(stats, elapsed_s)
            self._begin(stats.time_s)
        has_work = stats.state.num_running or stats.state.num_waiting
        self._idle_since_s = None if has_work else stats.time_s

    def _log(self, stats: StepStats, elapsed_s: float) -> None:
        state = stats.state
        num_blocks = state.blocks_used + state.blocks_cached + state.blocks_free
        fields: dict[str, object] = {
            "running": state.num_running,
            "waiting": state.num_waiting,
            "waiting_for": stats.waiting_for or None,
            "kv_used": f"{state.blocks_used / num_blocks:.1%}",
            "hit_rate": None if stats.hit_rate is None else f"{stats.hit_rate:.1%}",
            "preemptions": self._num_preemptions,
            "prompt_tokens_per_s": round(self._num_prompt / elapsed_s, 1),
            "output_tokens_per_s": round(self._num_output / elapsed_s, 1),
            "ended": self._num_ended,
        }
        _logger.info("state", extra={"fields": fields})
