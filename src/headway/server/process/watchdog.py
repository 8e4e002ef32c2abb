"""Tells a dead engine from a slow one."""

from __future__ import annotations

from headway.server.process.messages import Heartbeat

__all__ = ["LOADING_SILENCE_S", "SILENCE_S", "Watchdog"]

SILENCE_S = 3.0
"""Without a word from the engine, whose heartbeat comes twice a second: it is stopped, or its
interpreter hangs."""
LOADING_SILENCE_S = 60.0
"""The same while it imports PyTorch and reads weights, which hold the interpreter for seconds, and
for longer where the disk is slow."""
_ESTIMATES = 10.0
"""Times its estimate that a step may take."""
_ABSENT_S = 1.0
"""Between two checks, of which there are several a second: it was this process that stood still,
and maybe the whole machine."""


class Watchdog:
    """What is wrong with an engine, from when it spoke and what it said. Times are in seconds, all
    on one clock.

    A step is hung once it has taken `step_timeout_s`, and ten times as long as such a step should.
    """

    def __init__(self, now: float, *, step_timeout_s: float, silence_s: float = SILENCE_S) -> None:
        self._step_timeout_s = step_timeout_s
        self._silence_s = silence_s
        self._heard_s = now
        self._checked_s = now
        self._beat = Heartbeat(None, 0.0)

    def heard(self, now: float) -> None:
        """The engine has said something."""
        self._heard_s = now

    def beat(self, beat: Heartbeat) -> None:
        """And it was this."""
        self._beat = beat

    def fault(self, now: float) -> str | None:
        """To be asked several times a second; None: it works."""
        if now - self._checked_s > _ABSENT_S:
            self._heard_s += now - self._checked_s
        self._checked_s = now
        silent_s = now - self._heard_s
        if silent_s > self._silence_s:
            return f"the engine's process has not been heard of for {silent_s:.1f} s"
        step_s, limit_s = self._beat.step_s, self._beat.estimate_s * _ESTIMATES
        if step_s is not None and step_s > max(self._step_timeout_s, limit_s):
            return (
                f"a step of the engine has taken {step_s:.0f} s, and should take about "
                f"{self._beat.estimate_s:.1f} s (--step-timeout {self._step_timeout_s:g})"
            )
        return None
