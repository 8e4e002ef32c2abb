"""How many drafts pay, from what was observed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.clock import VirtualClock
from headway.core.params import SamplingParams
from headway.core.plan import Chunk, Sample, StepPlan, StepResult
from headway.core.request import Request
from headway.engine.speculation import Evidence, Speculator, draft_lengths
from unit.engine.test_costs import step

CHEAP = {"num_outputs": 1, "step_s": 0.010, "draft_s": 0.0005}


def test_a_draft_is_worth_it_while_it_adds_more_tokens_per_second_than_there_are() -> None:
    assert draft_lengths([0.9], [8], **CHEAP) == [8]
    assert draft_lengths([0.3], [8], **CHEAP) == [2]  # 0.3 ** 3 tokens for 1/20 of the time
    assert draft_lengths([0.01], [8], **CHEAP) == [0]


def test_what_costs_nothing_is_always_worth_it() -> None:
    free = {"num_outputs": 1, "step_s": 0.010, "draft_s": 0.0}
    assert draft_lengths([0.01, 0.0], [3, 3], **free) == [3, 0]


def test_a_full_batch_gets_none_where_a_token_costs_what_it_costs_alone() -> None:
    full = {"num_outputs": 64, "step_s": 0.026, "draft_s": 0.0004}
    assert draft_lengths([0.9] * 64, [4] * 64, **full) == [0] * 64


def test_the_likeliest_go_first_and_raise_the_bar_for_the_others() -> None:
    lengths = draft_lengths([0.9, 0.5, 0.1], [4] * 3, num_outputs=3, step_s=0.010, draft_s=0.0008)
    assert lengths == [4, 1, 0]


def test_no_request_gets_more_than_its_most() -> None:
    assert draft_lengths([0.9, 0.9, 0.9], [0, 2, -1], **CHEAP) == [0, 2, 0]
    assert draft_lengths([], [], **CHEAP) == []


def test_evidence_fades_so_what_did_not_pay_is_tried_again() -> None:
    evidence = Evidence()
    evidence.add(0, 40, step=1)
    chances = [evidence.chance(0.6, now) for now in (1, 65, 129, 513)]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(2.4 / 44)
    assert chances[1] == pytest.approx(2.4 / 24)
    assert chances[-1] > 0.5


class Guesses:
    """Proposes as many as are asked for; notes how many. It takes its time."""

    def __init__(self, clock: VirtualClock, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.asked: list[int] = []

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        self.asked.append(sum(count for _, count in wanted))
        self.clock.advance(self.seconds * sum(count for _, count in wanted))
        return {request.request_id: (0,) * count for request, count in wanted}


class World:
    """Steps that cost `step_s` and `token_s` for each token; drafts that are right `share` of the
    time, as regularly as can be."""

    def __init__(self, step_s: float, token_s: float, *, draft_s: float = 0.0, most: int = 4):
        self.clock = VirtualClock()
        self.guesses = Guesses(self.clock, draft_s)
        self.speculator = Speculator(self.guesses, num_tokens=most, clock=self.clock)
        self.step_s, self.token_s = step_s, token_s
        self.due: dict[str, float] = {}
        self.delays: dict[int, float] = {}
        self.num_steps = 0

    def run(self, share: dict[str, float], steps: int) -> list[dict[str, int]]:
        """Drafts by request, step by step; the shares are by request."""
        params = SamplingParams(max_tokens=100)
        requests = [Request(name, [1, 2], params, arrival_s=0) for name in share]
        for request in requests:
            request.limit_to(100)
        return [self._step(requests, share) for _ in range(steps)]

    def _step(self, requests: list[Request], share: dict[str, float]) -> dict[str, int]:
        drafts = self.speculator.propose(requests) if self.speculator.engaged else {}
        sample = Sample(SamplingParams(), 0, 0)
        chunks, accepted = [], {}
        for index, request in enumerate(requests):
            given = drafts.get(request.request_id, ())
            chunk = Chunk(request.request_id, 1, (2, *given), (0,), sample, num_drafts=len(given))
            chunks.append(chunk)
            accepted[index] = (0,) * self._right(request.request_id, share, len(given))
        plan = StepPlan(1, tuple(chunks))
        self.num_steps += 1
        duration_s = self.step_s + self.token_s * plan.num_tokens
        duration_s += self.delays.get(self.num_steps, 0.0)
        num_drafts = sum(chunk.num_drafts for chunk in chunks)
        record = step(plan.num_tokens, duration_s, num_draft_tokens=num_drafts)
        self.speculator.observe(plan, StepResult(1, (0,) * len(chunks), accepted), record)
        return {chunk.request_id: chunk.num_drafts for chunk in chunks}

    def _right(self, name: str, share: dict[str, float], count: int) -> int:
        for right in range(count):
            self.due[name] = self.due.get(name, 0.0) + share[name]
            if self.due[name] < 1.0:
                return right
            self.due[name] -= 1.0
        return count


def total(steps: list[dict[str, int]]) -> int:
    return sum(sum(counts.values()) for counts in steps)


def test_one_request_whose_drafts_are_right_keeps_all_it_may_have() -> None:
    steps = World(0.010, 0.0005).run({"r": 0.9}, 100)
    assert total(steps) > 0.95 * 4 * 100


def test_drafts_that_are_never_right_stop_and_are_tried_again_now_and_then() -> None:
    steps = World(0.010, 0.001).run({"r": 0.0}, 1000)
    assert total(steps[:50]) > 5
    assert 0 < total(steps[100:]) < 0.1 * 900


def test_the_requests_whose_drafts_are_right_keep_theirs() -> None:
    steps = World(0.010, 0.001).run({"right": 0.95, "wrong": 0.0}, 200)[100:]
    assert sum(counts["right"] for counts in steps) > 10 * sum(counts["wrong"] for counts in steps)
    assert sum(counts["right"] for counts in steps) > 300


def test_a_batch_in_which_tokens_cost_gets_next_to_none_and_a_small_one_some() -> None:
    world = World(0.001, 0.001)
    crowd = {f"r{i}": 0.7 for i in range(32)}
    assert total(world.run(crowd, 100)[20:]) == 0
    assert not world.speculator.engaged
    assert total(World(0.010, 0.001).run({"r": 0.7}, 100)[20:]) > 80


def test_a_draft_model_that_costs_more_than_it_gains_is_left_alone() -> None:
    assert total(World(0.010, 0.0005, draft_s=0.001).run({"r": 0.8}, 100)) > 250
    assert total(World(0.010, 0.0005, draft_s=0.020).run({"r": 0.8}, 100)[20:]) < 20


def test_a_step_that_was_held_up_now_and_then_changes_little() -> None:
    world, held_up = World(0.010, 0.0005), World(0.010, 0.0005)
    held_up.delays = {30: 2.0, 55: 3.0}
    counts = [total(item.run({"r": 0.8}, 100)) for item in (world, held_up)]
    assert counts[1] > 0.8 * counts[0]


def test_the_same_observations_give_the_same_drafts() -> None:
    share = {"a": 0.8, "b": 0.3, "c": 0.5}
    runs = [World(0.010, 0.001, draft_s=0.0005).run(share, 200) for _ in range(2)]
    assert runs[0] == runs[1]


def test_where_drafts_do_not_pay_plans_may_overlap_but_for_a_look_now_and_then() -> None:
    world = World(0.001, 0.001)
    crowd = {f"r{i}": 0.2 for i in range(32)}
    world.run(crowd, 40)
    engaged = []
    for _ in range(64):
        engaged.append(world.speculator.engaged)
        world.run(crowd, 1)
    assert engaged.count(True) == 4


def test_no_draft_is_asked_for_past_the_last_token_but_one() -> None:
    world = World(0.010, 0.0005)
    request = Request("r", [1, 2], SamplingParams(), arrival_s=0)
    request.limit_to(6)
    assert world.speculator.propose([request]) == {"r": (0, 0, 0)}
    request.token_ids += [0, 0, 0]
    assert world.speculator.propose([request]) == {}


def test_a_proposer_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World(0.010, 0.0005)

    def fail(wanted: object) -> dict[str, tuple[int, ...]]:
        world.guesses.asked.append(0)
        raise RuntimeError("out of luck")

    world.guesses.propose = fail  # type: ignore[method-assign, assignment]
    assert total(world.run({"r": 0.9}, 40)) == 0
    assert world.guesses.asked == [0]
    assert not world.speculator.engaged
    assert "from here on there are none" in caplog.text
