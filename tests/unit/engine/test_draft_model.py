"""Drafts by a second model: what its executor is given, and whose blocks are whose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.params import SamplingParams
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Request, RequestState
from headway.engine.draft_model import DraftModelProposer
from headway.sim.executor import SimulatedExecutor, expected_tokens

VOCAB, BLOCK_SIZE = 26, 4


class Drafter(SimulatedExecutor):
    """Keeps the plans; reads whole contexts, so that KV of a wrong token is found."""

    def __init__(self, num_blocks: int = 64) -> None:
        sizes = {"num_blocks": num_blocks, "block_size": BLOCK_SIZE, "vocab_size": VOCAB}
        super().__init__(clock=None, verify=True, **sizes)
        self.plans: list[StepPlan] = []
        self.error: BaseException | None = None

    def submit(self, plan: StepPlan) -> tuple[StepResult, float]:
        self.plans.append(plan)
        if self.error is not None:
            raise self.error
        return super().submit(plan)


class Bench:
    def __init__(self, num_blocks: int = 64, *, budget: int = 100, most: int = 100) -> None:
        self.executor = Drafter(num_blocks)
        self.proposer = DraftModelProposer(
            self.executor,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=budget,
            max_position=most,
        )

    def __call__(self, *wanted: tuple[Request, int]) -> dict[str, tuple[int, ...]]:
        self.executor.plans.clear()
        return self.proposer.propose(wanted)

    @property
    def computed(self) -> list[list[tuple[str, int, int]]]:
        """By plan and chunk: request, start, tokens."""
        return [
            [(chunk.request_id, chunk.start, chunk.num_tokens) for chunk in plan.chunks]
            for plan in self.executor.plans
        ]


def running(name: str, tokens: Sequence[int], **params: object) -> Request:
    request = Request(name, tokens, SamplingParams(**params), arrival_s=0)  # type: ignore[arg-type]
    request.move_to(RequestState.RUNNING)
    return request


def test_it_computes_what_it_has_not_seen_and_then_draft_by_draft() -> None:
    bench, request = Bench(), running("a", [1, 2, 3, 4, 5])
    assert bench((request, 3)) == {"a": tuple(expected_tokens([1, 2, 3, 4, 5], 3, VOCAB))}
    assert bench.computed == [[("a", 0, 5)], [("a", 5, 1)], [("a", 6, 1)]]
    assert all(plan.chunks[0].sample is request.sample for plan in bench.executor.plans)


@pytest.mark.parametrize("num_right", range(4))
def test_drafts_that_were_wrong_are_computed_over(num_right: int) -> None:
    bench, request = Bench(), running("a", [1, 2, 3, 4, 5])
    drafts = bench((request, 3))["a"]
    request.token_ids += drafts[:num_right]
    request.token_ids.append(25 - drafts[num_right] if num_right < 3 else 7)
    again = bench((request, 3))
    assert again == {"a": tuple(expected_tokens(request.token_ids, 3, VOCAB))}
    # Of the drafts two were computed; the last was only sampled.
    start = 5 + min(num_right, 2)
    assert bench.computed[0] == [("a", start, len(request.token_ids) - start)]


def test_a_proposal_after_which_nothing_came_is_made_again() -> None:
    bench, request = Bench(), running("a", [1, 2, 3])
    assert bench((request, 2)) == bench((request, 2))
    assert bench.computed == [[("a", 2, 1)], [("a", 3, 1)]]


def test_nothing_is_drafted_after_a_token_that_would_end_the_request() -> None:
    expected = expected_tokens([1, 2], 4, VOCAB)
    bench, request = Bench(), running("a", [1, 2], stop_token_ids=[expected[1]])
    assert bench((request, 4)) == {"a": tuple(expected[:2])}


def test_a_long_prompt_is_caught_up_with_over_several_proposals_behind_the_others() -> None:
    bench = Bench(budget=10)
    long, short = running("long", [*range(22)]), running("short", [1, 2, 3])
    assert bench((long, 2), (short, 2)).keys() == {"short"}
    assert bench.computed == [[("short", 0, 3), ("long", 0, 7)], [("short", 3, 1)]]
    short.token_ids.append(25)
    assert bench((long, 2), (short, 2)).keys() == {"short"}
    assert bench.computed[0] == [("short", 3, 1), ("long", 7, 9)]
    assert bench((long, 2)) == {"long": tuple(expected_tokens([*range(22)], 2, VOCAB))}


def test_lengths_are_each_requests_own() -> None:
    bench, a, b = Bench(), running("a", [1, 2]), running("b", [3, 4])
    drafts = bench((a, 1), (b, 3))
    assert {name: len(tokens) for name, tokens in drafts.items()} == {"a": 1, "b": 3}
    assert bench.computed == [[("a", 0, 2), ("b", 0, 2)], [("b", 2, 1)], [("b", 3, 1)]]


def test_who_finds_no_blocks_gets_no_drafts_until_others_give_theirs_back() -> None:
    bench = Bench(num_blocks=3)
    a, b = running("a", [*range(7)]), running("b", [*range(7)])
    assert bench((a, 2), (b, 2)).keys() == {"a"}
    a.move_to(RequestState.PREEMPTED)
    assert bench((b, 2)).keys() == {"b"}
    a.move_to(RequestState.RUNNING)
    assert bench((a, 2)) == {}
    b.move_to(RequestState.FINISHED_STOP)
    assert bench((a, 2)) == {"a": tuple(expected_tokens([*range(7)], 2, VOCAB))}


def test_no_two_requests_share_a_block_and_none_is_lost() -> None:
    bench = Bench(num_blocks=12)
    requests = [running(f"r{i}", [i] * (3 + i)) for i in range(5)]
    for round_ in range(6):
        bench(*((request, 3) for request in requests))
        tables = [context.table for context in bench.proposer._contexts.values()]
        held = [block for table in tables for block in table]
        assert sorted(held + bench.proposer._free) == list(range(12))
        for request in requests:
            request.token_ids.append(round_)
        requests[round_ % 5].state = RequestState.FINISHED_STOP
        requests[round_ % 5] = running(f"s{round_}", [1, 2, 3])


def test_no_position_past_the_draft_models_last_is_computed() -> None:
    bench, request = Bench(most=6), running("a", [1, 2, 3, 4])
    assert len(bench((request, 8))["a"]) == 3
    assert max(chunk.end for plan in bench.executor.plans for chunk in plan.chunks) == 6
    request.token_ids += [1, 2, 3]
    assert bench((request, 8)) == {}


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), KeyboardInterrupt()])
def test_after_a_failure_nothing_is_taken_to_be_computed(error: BaseException) -> None:
    bench, request = Bench(num_blocks=2), running("a", [1, 2, 3, 4])
    bench((request, 2))
    bench.executor.error = error
    request.token_ids.append(9)
    with pytest.raises(type(error)):
        bench((request, 2))
    bench.executor.error = None
    assert bench((request, 2)) == {"a": tuple(expected_tokens([1, 2, 3, 4, 9], 2, VOCAB))}
    assert bench.computed[0] == [("a", 0, 5)]
