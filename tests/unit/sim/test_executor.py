from __future__ import annotations

import pytest

from headway.clock import VirtualClock
from headway.core.params import SamplingParams
from headway.core.plan import Chunk, Sample, StepPlan
from headway.sim.executor import LinearCost, SimulatedExecutor, expected_tokens

SAMPLE = Sample(SamplingParams(), seed=0, index=0)


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


@pytest.mark.parametrize("num_right", range(4))
def test_s14_drafts_are_accepted_while_they_are_what_is_sampled(num_right: int) -> None:
    executor = SimulatedExecutor(clock=None, num_blocks=4, block_size=2, vocab_size=99, verify=True)
    prompt = [1, 2, 3]
    to_come = expected_tokens(prompt, 5, 99)
    drafts = [token + (i >= num_right) for i, token in enumerate(to_come[:3])]
    chunk = Chunk("a", 0, (*prompt, *drafts), (2, 0, 1), SAMPLE, num_drafts=3)
    result = executor.collect(executor.submit(StepPlan(1, (chunk,))))
    assert (*result.accepted.get(0, ()), result.token_ids[0]) == (*to_come[: num_right + 1],)


def test_s14_a_rejected_draft_that_is_taken_for_computed_shows() -> None:
    executor = SimulatedExecutor(clock=None, num_blocks=4, block_size=2, vocab_size=99)
    prompt, table = [1, 2, 3], (2, 0, 1)
    to_come = expected_tokens(prompt, 3, 99)

    def sampled(chunk: Chunk) -> int | None:
        return executor.submit(StepPlan(1, (chunk,)))[0].token_ids[0]

    drafted = Chunk("a", 0, (*prompt, to_come[0] + 1), table, SAMPLE, num_drafts=1)
    assert sampled(drafted) == to_come[0]
    after_it = Chunk("a", 4, (to_come[1],), table, SAMPLE)
    assert sampled(after_it) != to_come[2]
    assert sampled(Chunk("a", 3, (to_come[0],), table, SAMPLE)) == to_come[1]
    assert sampled(after_it) == to_come[2]
