"""What scheduling costs; `make test ARGS="tests/unit/core/test_cost.py"` prints it."""

from __future__ import annotations

from pytest_benchmark.fixture import BenchmarkFixture

from driver import Driver
from headway.core.plan import StepResult

WIDTH = 128
MOST_S = 0.010
"""Per step of 128 decodes; a step of the smallest model takes ten times that on 2 cores."""


def test_a_step_of_128_decodes_costs_next_to_nothing(benchmark: BenchmarkFixture) -> None:
    d = Driver(num_blocks=20_000, block_size=16, budget=4096, width=WIDTH)
    for i in range(WIDTH):
        d.add(f"r{i}", 16, max_tokens=2000)
    scheduler = d.scheduler
    d.step()

    def step() -> None:
        plan = scheduler.schedule(0.0)
        scheduler.apply(StepResult(plan.step, (5,) * len(plan.chunks)), 0.0)

    benchmark.pedantic(step, rounds=300, warmup_rounds=20)
    assert scheduler.num_running == WIDTH
    assert benchmark.stats.stats.median < MOST_S
