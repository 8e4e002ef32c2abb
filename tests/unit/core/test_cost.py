"""What scheduling costs; `make test ARGS="tests/unit/core/test_cost.py"` prints it.

The limits are for busy machines: several times what it takes, and well below ten times that.
`headway bench scheduler` measures.
"""

from __future__ import annotations

import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headway.bench.scheduler import Decodes, prompt_costs

MOST_STEP_MS = {1: 0.1, 64: 0.6, 256: 2.4, 1024: 12.0}
MOST_PROMPT_MS = {"door": 5.0, "hash": 4.0, "miss": 8.0, "hit": 6.0}


@pytest.mark.parametrize("width", MOST_STEP_MS)
def test_a_step_of_decodes_costs_next_to_nothing(benchmark: BenchmarkFixture, width: int) -> None:
    decodes = Decodes(width, busy=True)
    benchmark.pedantic(decodes.step, args=(time.perf_counter,), rounds=64)
    assert decodes.num_running >= width - max(1, width // 100), "some end in each step"
    assert benchmark.stats.stats.min * 1e3 < MOST_STEP_MS[width]


def test_a_long_prompt_that_arrives_costs_little() -> None:
    for name, cost in prompt_costs(rounds=5).items():
        assert cost.least_ms < MOST_PROMPT_MS[name], name
