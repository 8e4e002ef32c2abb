"""What is found out about prompt tokens before anything is served."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headway.clock import VirtualClock
from headway.core.plan import StepPlan, StepResult
from headway.engine.prefill import prefill_rate
from headway.engine.threaded import ThreadedExecutor
from headway.sim.executor import LinearCost, SimulatedExecutor
from tiny import TINY
from tiny_executors import reference
from tiny_plans import whole


class Noted:
    """A simulated executor, and what it was given; some steps take a second longer."""

    def __init__(
        self, clock: VirtualClock, cost: LinearCost, held_up: tuple[int, ...] = ()
    ) -> None:
        self.plans: list[StepPlan] = []
        self._clock = clock
        self._held_up = held_up
        self._inner = SimulatedExecutor(
            clock=clock, num_blocks=1000, block_size=16, vocab_size=9, cost=cost
        )

    def submit(self, plan: StepPlan) -> Any:
        if len(self.plans) in self._held_up:
            self._clock.advance(1.0)
        self.plans.append(plan)
        return self._inner.submit(plan)

    def collect(self, handle: Any) -> StepResult:
        return self._inner.collect(handle)

    def block_copy_s(self) -> float:
        return self._inner.block_copy_s()


def measured(
    cost: LinearCost, held_up: tuple[int, ...] = (), **limits: Any
) -> tuple[float, float, list[StepPlan]]:
    """The rate, how long finding it took, and the plans."""
    clock = VirtualClock()
    executor = Noted(clock, cost, held_up)
    sizes = {"block_size": 16, "num_blocks": 1000, "max_model_len": 4096, "max_tokens": 8192}
    rate = prefill_rate(executor, clock, **{**sizes, **limits})
    return rate, clock.now(), executor.plans


def test_the_rate_is_that_of_the_largest_step_that_there_was_time_for() -> None:
    rate, took_s, plans = measured(LinearCost(step_s=0.001, token_s=0.0005))
    assert max(plan.num_tokens for plan in plans) == 256  # 512 would be past half a second
    assert rate == pytest.approx(256 / 0.129)
    assert 0.3 < took_s < 0.55


def test_a_fast_machine_is_asked_for_a_whole_step_and_no_more() -> None:
    rate, took_s, plans = measured(LinearCost(step_s=0.0, token_s=1e-5))
    assert max(plan.num_tokens for plan in plans) == 8192
    assert rate == pytest.approx(1e5)
    assert took_s < 0.55


def test_a_slow_machine_is_asked_for_one_block_twice() -> None:
    rate, _, plans = measured(LinearCost(step_s=0.0, token_s=0.1))
    assert [plan.num_tokens for plan in plans] == [16, 16]
    assert rate == pytest.approx(10)


def test_a_step_that_is_held_up_does_not_count_if_another_is_not() -> None:
    cost = LinearCost(step_s=0.0, token_s=0.0005)
    assert measured(cost, held_up=(0,))[0] == pytest.approx(2000)
    assert measured(cost, held_up=(3,))[0] == pytest.approx(2000)


def test_where_steps_take_no_time_there_is_no_end_to_the_rate() -> None:
    assert measured(LinearCost(step_s=0.0, token_s=0.0))[0] == math.inf


@pytest.mark.parametrize(
    ("limits", "longest", "largest"),
    [
        ({}, 512, 8192),
        ({"max_model_len": 100}, 100, 8192),
        ({"max_model_len": 100, "num_blocks": 8}, 100, 100),
        ({"max_tokens": 10}, 10, 10),
        ({"max_model_len": 2, "num_blocks": 3, "max_tokens": 100}, 2, 6),
    ],
)
def test_steps_stay_within_the_model_the_cache_and_the_budget(
    limits: dict[str, int], longest: int, largest: int
) -> None:
    _, _, plans = measured(LinearCost(step_s=0.01, token_s=1e-5), **limits)
    assert max(len(chunk.token_ids) for plan in plans for chunk in plan.chunks) == longest
    assert max(plan.num_tokens for plan in plans) == largest
    for plan in plans:
        blocks = [block for chunk in plan.chunks for block in chunk.block_table]
        assert len(set(blocks)) == len(blocks)
        assert max(blocks) < limits.get("num_blocks", 1000)


@pytest.mark.parametrize("threaded", [False, True])
def test_what_is_computed_afterwards_is_what_a_fresh_executor_computes(threaded: bool) -> None:
    executor: Any = ThreadedExecutor(reference) if threaded else reference()
    prefill_rate(
        executor,
        VirtualClock(),
        block_size=4,
        num_blocks=96,
        max_model_len=TINY.max_position,
        max_tokens=64,
    )
    plan, fresh = whole([5, 6, 7, 8, 9]), reference()
    assert executor.collect(executor.submit(plan)) == fresh.collect(fresh.submit(plan))
    if threaded:
        executor.close()
