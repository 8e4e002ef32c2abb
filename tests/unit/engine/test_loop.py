"""The step loop, around a core that is scripted."""

from __future__ import annotations

import queue
from typing import cast

import pytest

from headway.clock import VirtualClock
from headway.engine.core import EngineCore
from headway.engine.loop import StepLoop
from headway.engine.outputs import OutputDelta
from waiting import IN_TIME_S


class Core:
    """Has work for so many steps, and notes each."""

    def __init__(self, noted: queue.SimpleQueue[str]) -> None:
        self.num_steps = 0
        self._noted = noted

    @property
    def has_work(self) -> bool:
        return self.num_steps > 0

    def step(self) -> list[OutputDelta]:
        self.num_steps -= 1
        self._noted.put("step")
        return []


@pytest.mark.parametrize("tidy_after_s", [0.0, 3600.0])
def test_it_tidies_once_each_time_that_it_has_rested(tidy_after_s: float) -> None:
    noted: queue.SimpleQueue[str] = queue.SimpleQueue()
    core = Core(noted)
    loop = StepLoop(
        cast(EngineCore, core),
        deliver=lambda deltas: None,
        failed=noted.put,
        clock=VirtualClock(),
        tidy=lambda: noted.put("tidy"),
        tidy_after_s=tidy_after_s,
    )
    tidied = ["tidy"] if tidy_after_s == 0 else []
    expected = tidied + (["step", "step", *tidied] * 3)
    loop.start()
    seen = [noted.get(timeout=IN_TIME_S) for _ in tidied]
    for _ in range(3):
        core.num_steps = 2
        loop.wake()
        seen += [noted.get(timeout=IN_TIME_S) for _ in ("step", "step", *tidied)]
    loop.stop()
    assert noted.empty()
    assert seen == expected
