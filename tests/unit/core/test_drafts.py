"""Drafts: guessed tokens that a step checks (rule S14)."""

from __future__ import annotations

import copy
from random import Random

import pytest

from driver import VOCAB, Driver
from headway.core.drafting import NO_DRAFTS
from headway.core.plan import ChunkError, StepPlan
from headway.core.policies import FairPolicy
from headway.sim.executor import expected_tokens
from headway.sim.situations import random_setup
from headway.sim.soak import act
from headway.sim.trial import Trial


def decoding(*names: str, prompt: int = 6, max_tokens: int = 20, **options: object) -> Driver:
    """Requests that have one token of output each."""
    d = Driver(**options)  # type: ignore[arg-type]
    for name in names or ("r",):
        d.add(name, prompt, max_tokens=max_tokens)
    while any(r.num_output_tokens == 0 for r in d.requests.values()):
        d.step()
    return d


def guess(d: Driver, name: str, num_right: int, num_wrong: int) -> list[int]:
    tokens = d.right(name, num_right + num_wrong)
    return [*tokens[:num_right], *((token + 1) % VOCAB for token in tokens[num_right:])]


def names(d: Driver) -> list[str]:
    return [request.request_id for request in d.scheduler.draftable]


@pytest.mark.parametrize("num_right", range(4))
def test_s14_drafts_are_accepted_as_far_as_they_are_right(num_right: int) -> None:
    d = decoding()
    request = d.requests["r"]
    guesses = guess(d, "r", num_right, 3 - num_right)
    plan = d.plan(drafts={"r": guesses})
    [chunk] = plan.chunks
    assert (chunk.token_ids, chunk.num_drafts) == ((request.token_ids[-1], *guesses), 3)
    assert (chunk.start, chunk.end, plan.num_tokens) == (6, 10, 4)
    outcome = d.collect()
    assert [u.token_id for u in outcome.updates] == d.expected("r")[1 : num_right + 2]
    assert {u.request for u in outcome.updates} == {request}
    assert request.num_computed_tokens == len(request.token_ids) - 1 == 7 + num_right
    record = d.records[-1]
    assert (record.num_tokens, record.num_draft_tokens) == (4, 3)
    assert (record.num_accepted_tokens, record.discarded_tokens) == (num_right, 3 - num_right)
    d.run()
    assert d.output("r") == d.expected("r")


def test_s14_drafts_get_what_is_left_of_the_budget_when_all_others_had_their_tokens() -> None:
    d = decoding("a", "b", budget=16)
    d.add("late", 9)
    plan = d.plan(drafts={name: d.right(name, 4) for name in ("b", "a")})
    assert d.given(plan) == {"a": 5, "b": 2, "late": 9}, "in order of admission, b's cut"
    assert [chunk.num_drafts for chunk in plan.chunks] == [4, 1, 0]
    assert plan.num_tokens == 16
    d.collect()
    d.run()
    assert all(d.output(name) == d.expected(name) for name in d.requests)


def test_s14_the_threshold_for_long_prompts_does_not_concern_drafts() -> None:
    d = decoding("a", "b", threshold=3)
    plan = d.step({"a": d.right("a", 8)})
    assert d.given(plan) == {"a": 9, "b": 1}


@pytest.mark.parametrize("left", [1, 2, 3, 6])
def test_s14_nothing_is_planned_past_the_end_of_a_request(left: int) -> None:
    d = decoding(max_tokens=1 + left)
    assert names(d) == (["r"] if left > 1 else [])
    plan = d.step({"r": d.right("r", 9)})
    assert plan.chunks[0].num_drafts == min(9, left - 1)
    assert plan.chunks[0].end == d.requests["r"].max_total_tokens - 1
    assert d.requests["r"].finish_reason == "length"
    assert d.output("r") == d.expected("r")


@pytest.mark.parametrize(
    ("num_blocks", "watermark", "num_drafts"),
    [(12, 0.0, 9), (7, 0.0, 8), (6, 0.0, 4), (5, 0.0, 0), (12, 0.5, 4), (12, 0.45, 8)],
)
def test_s14_drafts_take_only_blocks_that_nobody_counts_on(
    num_blocks: int, watermark: float, num_drafts: int
) -> None:
    """Each holds two blocks, which the step fills, and is due a third for the token that it is
    about to gain."""
    d = decoding("a", "b", prompt=7, num_blocks=num_blocks, watermark=watermark, max_tokens=12)
    assert d.kv.num_used == 4
    plan = d.plan(drafts={"a": guess(d, "a", 9, 0)})
    assert plan.chunks[0].num_drafts == num_drafts
    d.collect()
    d.run()
    assert all(d.output(name) == d.expected(name) for name in "ab")


def test_s14_drafts_leave_a_reservation_alone_and_use_their_own() -> None:
    d = Driver(num_blocks=8, caching=False, max_preemptions=0)
    d.add("a", 7, max_tokens=9)  # reserves 4 blocks
    d.add("b", 7, max_tokens=9)
    d.step()
    guesses = {name: d.right(name, 7) for name in "ab"}
    plan = d.step(guesses)
    assert [chunk.num_drafts for chunk in plan.chunks] == [7, 7]
    d.run()
    assert all(d.output(name) == d.expected(name) for name in "ab")


def test_s14_blocks_of_rejected_drafts_are_free_again() -> None:
    d = decoding(prompt=6, max_tokens=40)
    before = d.kv.num_used
    plan = d.plan(drafts={"r": guess(d, "r", 0, 12)})
    assert len(plan.chunks[0].block_table) == 5
    assert d.kv.num_used == 5
    d.collect()
    assert d.kv.num_used == before == 2
    d.step({"r": guess(d, "r", 2, 10)})
    assert d.kv.num_used == 3, "10 are computed"
    d.run()
    assert d.output("r") == d.expected("r")


def test_s14_drafts_are_not_hashed_before_they_are_accepted() -> None:
    d = decoding(prompt=6, max_tokens=40)
    guesses = guess(d, "r", 1, 9)
    known = list(d.requests["r"].token_ids)
    d.plan(drafts={"r": guesses})
    d.collect()
    d.add("other", [*known, *guesses])
    d.step()
    assert d.requests["other"].num_cached_tokens == 8, "prompt, its token, the accepted draft"
    d.run()
    d.add("again", [*d.requests["r"].token_ids])
    d.run()
    assert d.requests["again"].num_cached_tokens == (len(d.requests["r"].token_ids) - 1) // 4 * 4


def test_s14_while_drafts_are_in_flight_nothing_is_planned() -> None:
    d = decoding("a", "b")
    d.plan(drafts={"a": d.right("a", 2)})
    assert names(d) == []
    d.add("late", 5)
    assert not d.plan(drafts={"b": d.right("b", 2)}).to_run
    d.collect()
    assert names(d) == ["a", "b"]
    assert d.given(d.step()) == {"a": 1, "b": 1, "late": 5}


def test_s14_a_request_with_a_token_in_flight_gets_no_drafts_and_others_do() -> None:
    d = decoding("a", "b", budget=8)
    d.add("long", 20, max_tokens=4)
    d.abort("a")
    d.plan()
    assert names(d) == [], "b's token is in flight, and long has not begun to decode"
    plan = d.plan(drafts={"b": d.right("b", 2), "long": [1]})
    assert [chunk.num_drafts for chunk in plan.chunks] == [0, 0]
    d.collect()
    d.collect()
    d.run()
    assert d.output("b") == d.expected("b")


@pytest.mark.parametrize(
    "params",
    [
        {"logprobs": 0},
        {"min_tokens": 9},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.5},
    ],
)
def test_s14_who_wants_more_than_tokens_drawn_alike_gets_no_drafts(params: dict[str, int]) -> None:
    d = Driver()
    d.add("r", 6, max_tokens=20, **params)
    d.step()
    assert names(d) == []
    plan = d.step({"r": d.right("r", 3)})
    assert plan.chunks[0].num_drafts == 0


def test_s14_a_stop_token_among_the_drafts_ends_the_request_there() -> None:
    d = Driver()
    prompt = [5, 6, 7, 8]
    stop = expected_tokens(prompt, 4, VOCAB)[3]
    d.add("r", prompt, max_tokens=20, stop_token_ids=[stop])
    d.step()
    d.plan(drafts={"r": d.right("r", 6)})
    outcome = d.collect()
    assert [u.token_id for u in outcome.updates] == d.expected("r")[1:4]
    assert [u.finish_reason for u in outcome.updates] == [None, None, "stop"]
    record = d.records[-1]
    assert (record.num_accepted_tokens, record.discarded_tokens) == (2, 4)
    assert d.kv.num_used == 0


def test_s14_an_abort_discards_drafts_in_flight() -> None:
    d = decoding("a", "b")
    d.plan(drafts={"a": d.right("a", 9)})
    d.abort("a")
    outcome = d.collect()
    assert {u.request.request_id for u in outcome.updates} == {"b"}
    assert (d.records[-1].discarded_tokens, d.records[-1].num_accepted_tokens) == (10, 0)
    d.run()
    assert d.kv.num_used == 0


def test_s14_after_a_failed_step_its_requests_run_alone_and_without_drafts() -> None:
    d = decoding("a", "b", caching=False)
    known = list(d.requests["a"].token_ids)
    d.plan(fails=True, drafts={"a": d.right("a", 5)})
    d.collect()
    request = d.requests["a"]
    assert (request.token_ids, request.num_computed_tokens) == (known, 0)
    assert request.isolated_until == request.num_computed_once == len(known)
    assert d.records[-1].discarded_tokens == 7
    for name in "ab":
        assert names(d) == []
        plan = d.step({"a": d.right("a", 5), "b": d.right("b", 5)})
        assert [(c.request_id, c.num_drafts) for c in plan.chunks] == [(name, 0)]
    assert names(d) == ["a", "b"]
    d.run()
    assert all(d.output(name) == d.expected(name) for name in "ab")
    assert sum(record.recomputed_tokens for record in d.records) == 2 * len(known)


def test_s14_nan_in_a_chunk_with_drafts_poisons_their_blocks_too() -> None:
    d = decoding(num_blocks=8, prompt=6, max_tokens=20)
    blocks = d.plan(drafts={"r": d.right("r", 9)}).chunks[0].block_table
    assert len(blocks) == 4
    d.collect({0: ChunkError("NaN")})
    assert d.errors == {"r": ChunkError("NaN")}
    assert (d.records[-1].discarded_tokens, d.records[-1].num_accepted_tokens) == (9, 0)
    d.add("next", 30, max_tokens=1)
    assert set(d.plan().zero_blocks) == set(blocks)
    d.collect()


def test_s14_fair_charges_for_accepted_drafts_alone() -> None:
    """One prompt token counts 1, one output token 2 (rule S13)."""
    service = []
    for drafts in (False, True):
        d = Driver(policy="fair")
        d.add("r", 6, max_tokens=10, tenant="t")
        while d.scheduler.has_work:
            d.step({"r": guess(d, "r", 2, 1)} if drafts else NO_DRAFTS)
        policy = d.scheduler._policy
        assert isinstance(policy, FairPolicy)
        service.append(policy.service["t"])
    assert service == [6 + 2 * 10] * 2


def test_s14_drafts_are_not_counted_as_computed_again() -> None:
    d = decoding("a", "b", prompt=6, num_blocks=6, budget=32, max_tokens=16, caching=False)
    while not any(r.num_preemptions for r in d.requests.values()):
        d.step({name: d.right(name, 3) for name in "ab"})
    [victim] = [r for r in d.requests.values() if r.num_preemptions]
    assert victim.num_computed_once == len(victim.token_ids) - 1
    once = victim.num_computed_once
    while d.scheduler.has_work:
        d.step({name: d.right(name, 3) for name in "ab"})
    assert sum(record.recomputed_tokens for record in d.records) == once
    assert all(d.output(name) == d.expected(name) for name in "ab")


def test_s14_drafts_of_unknown_requests_are_left_out() -> None:
    d = decoding()
    assert d.step({"nobody": [1], "r": []}).num_tokens == 1


class Twins(Trial):
    """Before each plan it is asked what the plan had been without drafts."""

    num_drafted = num_tight = 0

    def plan(self, *, fails: bool = False) -> StepPlan:
        twin = copy.deepcopy(self._scheduler)
        without = twin.schedule(self._clock.now(), self.setup.costs)
        plan = super().plan(fails=fails)
        bare = [
            chunk._replace(
                token_ids=chunk.token_ids[: len(chunk.token_ids) - chunk.num_drafts],
                block_table=other.block_table,
                num_drafts=0,
            )
            for chunk, other in zip(plan.chunks, without.chunks, strict=True)
        ]
        assert bare == [*without.chunks]
        for chunk, other in zip(plan.chunks, without.chunks, strict=True):
            assert chunk.block_table[: len(other.block_table)] == other.block_table
        assert (plan.copies_in, plan.copies_out) == (without.copies_in, without.copies_out)
        for name, request in twin._roster.requests.items():
            assert self._scheduler._roster.requests[name].state is request.state
        self.num_drafted += plan.num_tokens > without.num_tokens
        self.num_tight += (
            plan.num_tokens > without.num_tokens and self._scheduler.state.num_waiting > 0
        )
        return plan


def test_s14_a_plan_is_what_it_is_without_drafts_but_for_the_drafts() -> None:
    """I20: they take nothing from anyone, and nobody gives way to them."""
    num_drafted = num_tight = 0
    for seed in range(40):
        random = Random(seed)
        setup = random_setup(random)
        if not setup.num_drafts:
            continue
        trial = Twins(setup)
        for _ in range(20):
            act(trial, random)
        trial.finish()
        num_drafted += trial.num_drafted
        num_tight += trial.num_tight
    assert num_drafted > 100
    assert num_tight > 50
