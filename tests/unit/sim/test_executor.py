from __future__ import annotations

import pytest

from headway.clock import VirtualClock
from headway.core.plan import Chunk, StepPlan
from headway.sim.executor import LinearCost, SimulatedExecutor


def test_copies_take_the_time_that_the_cost_model_says() -> None:
    clock = VirtualClock()
    executor = SimulatedExecutor(
        clock=clock, num_blocks=4, block_size=2, vocab_size=9, cost=LinearCost(1.0, 0.1, 0.01)
    )
    chunk = Chunk("a", 0, (1, 2, 3), (0, 1))
    executor.collect(executor.submit(StepPlan(1, (chunk,), (), ((2, 0), (3, 1)))))
    assert clock.now() == pytest.approx(1.32)
    executor.collect(executor.submit(StepPlan(2, (), copies_in=((1, 2),))))
    assert clock.now() == pytest.approx(2.33)
    assert executor.block_copy_s() == 0.01
