"""Recompute, swap or whichever is cheaper, and how often (rules P2 to P5)."""

from __future__ import annotations

import pytest

from driver import Driver
from headway.core.preemption import Mode
from headway.core.request import FinishReason, RequestState
from headway.metrics import Costs


def tight(mode: Mode, **options: object) -> Driver:
    """Two requests of five blocks each, at their longest, in a pool of six."""
    d = Driver(
        num_blocks=6,
        caching=False,
        reserve=False,
        mode=mode,
        **{"swap_slots": 8, **options},  # type: ignore[arg-type]
    )
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    return d


def until_preempted(d: Driver, name: str = "b") -> None:
    while d.requests[name].num_preemptions == 0:
        assert d.scheduler.has_work, "it was never preempted"
        d.step()


def test_p2_a_swapped_request_keeps_what_it_computed() -> None:
    d = tight("swap")
    until_preempted(d)
    b = d.requests["b"]
    assert b.state is RequestState.SWAPPED
    computed = b.num_computed_tokens
    assert computed >= 8
    assert len(b.swapped) == -(-computed // 4) == d.records[-1].swapped_out_blocks
    d.run()
    assert d.output("b") == d.expected("b")
    assert sum(record.recomputed_tokens for record in d.records) == 0
    moved_out = sum(record.swapped_out_blocks for record in d.records)
    assert moved_out == sum(record.swapped_in_blocks for record in d.records) > 0


def test_p2_copies_of_a_plan_come_before_its_chunks() -> None:
    d = tight("swap")
    until_preempted(d)
    while d.requests["b"].state is not RequestState.RUNNING:
        plan = d.step()
    assert [slot for slot, _ in plan.copies_in]
    chunk = next(chunk for chunk in plan.chunks if chunk.request_id == "b")
    assert [block for _, block in plan.copies_in] == list(chunk.block_table[: len(plan.copies_in)])
    assert chunk.start == d.requests["b"].num_computed_tokens - chunk.num_tokens > 0


def test_p2_on_resume_what_is_still_cached_is_not_copied() -> None:
    d = Driver(num_blocks=7, reserve=False, mode="swap", swap_slots=8)
    shared = list(range(8))
    d.add("a", [*shared, 50], max_tokens=10)
    d.step()
    d.add("b", [*shared, 60], max_tokens=10)
    until_preempted(d)
    held = len(d.requests["b"].swapped)
    while d.requests["b"].state is not RequestState.RUNNING:
        plan = d.step()
    # The two blocks that `a` held as well at least are found, and not copied back.
    num_hits = d.records[-1].admissions["b"].hit_tokens // 4
    assert num_hits >= 2
    assert len(plan.copies_in) == held - num_hits
    d.run()
    assert d.output("b") == d.expected("b")


def test_p2_an_abort_frees_the_swap_slots() -> None:
    d = tight("swap")
    until_preempted(d)
    assert d.scheduler._roster.swap.num_used > 0
    d.abort("b")
    assert d.scheduler._roster.swap.num_used == 0
    d.run()


def test_p2_where_the_swap_space_is_full_it_is_recomputed() -> None:
    d = tight("swap", swap_slots=1)
    until_preempted(d)
    assert d.requests["b"].state is RequestState.PREEMPTED
    d.run()
    assert sum(record.swapped_out_blocks for record in d.records) == 0
    assert d.output("b") == d.expected("b")


def test_p2_the_late_token_of_a_swapped_request_is_kept_and_may_end_it() -> None:
    d = Driver(
        num_blocks=4, policy="priority", caching=False, reserve=False, mode="swap", swap_slots=4
    )
    d.add("urgent", 7, priority=0, max_tokens=8)
    d.step()
    d.add("late", 8, priority=9, max_tokens=1)
    d.plan()
    d.plan()
    assert d.requests["late"].state is RequestState.SWAPPED
    d.collect()
    assert d.requests["late"].finish_reason is FinishReason.LENGTH
    assert d.output("late") == d.expected("late")
    assert d.scheduler._roster.swap.num_used == 0


@pytest.mark.parametrize(
    ("costs", "state"),
    [
        (Costs(prefill_token_s=1e-3, block_copy_s=1e-4), RequestState.SWAPPED),
        (Costs(prefill_token_s=1e-4, block_copy_s=1e-3), RequestState.PREEMPTED),
        (None, RequestState.PREEMPTED),
    ],
)
def test_p3_auto_takes_what_is_estimated_cheaper(costs: Costs | None, state: RequestState) -> None:
    d = tight("auto", costs=costs)
    until_preempted(d)
    assert d.requests["b"].state is state
    d.run()
    assert d.output("b") == d.expected("b")


@pytest.mark.parametrize(("block_copy_s", "swaps"), [(1.9, True), (2.1, False)])
def test_p3_a_block_is_copied_out_and_in_and_four_tokens_are_computed(
    block_copy_s: float, swaps: bool
) -> None:
    d = tight("auto", costs=Costs(prefill_token_s=1.0, block_copy_s=block_copy_s))
    until_preempted(d)
    assert d.requests["b"].num_computed_tokens in (0, 12)
    assert (d.requests["b"].state is RequestState.SWAPPED) == swaps


@pytest.mark.parametrize(
    ("caching", "state"), [(False, RequestState.SWAPPED), (True, RequestState.PREEMPTED)]
)
def test_p3_tokens_in_blocks_that_others_hold_too_cost_nothing_to_recompute(
    caching: bool, state: RequestState
) -> None:
    d = Driver(
        num_blocks=6 if caching else 9,
        reserve=False,
        caching=caching,
        mode="auto",
        swap_slots=9,
        costs=Costs(prefill_token_s=1.0, block_copy_s=1.0),
    )
    shared = list(range(12))
    d.add("a", [*shared, 50], max_tokens=7)
    d.step()
    d.add("b", [*shared, 60], max_tokens=7)
    until_preempted(d)
    # Four blocks out and in cost 8 s; 16 tokens are computed in 16 s, but for 12 shared ones.
    assert d.requests["b"].state is state
    d.run()
    assert d.output("b") == d.expected("b")


@pytest.mark.parametrize("most", [0, 1, 3])
def test_p4_nobody_is_preempted_for_memory_more_often(most: int) -> None:
    d = Driver(num_blocks=6, caching=False, reserve=False, max_preemptions=most)
    for name in "abcd":
        d.add(name, 6, max_tokens=15)
    d.run()
    assert max(r.num_memory_preemptions for r in d.requests.values()) <= most
    assert all(d.output(name) == d.expected(name) for name in "abcd")


def test_p4_after_so_many_it_is_admitted_with_all_it_may_need_reserved() -> None:
    d = Driver(num_blocks=7, caching=False, reserve=False, max_preemptions=1)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    until_preempted(d)
    while d.requests["b"].state is not RequestState.RUNNING:
        d.step()
    # 19 tokens need five blocks: it came in once they were there, `a` having ended.
    held = d.requests["b"].held
    assert held.reserved
    assert len(held.blocks) + held.promised == 5
    d.add("c", 8, max_tokens=12)
    d.step()
    assert d.requests["c"].state is RequestState.RUNNING
    d.run()
    assert d.requests["b"].num_memory_preemptions == 1


def test_p4_a_request_that_ran_alone_after_a_failed_step_keeps_its_reservation() -> None:
    d = Driver(num_blocks=7, caching=False, reserve=False, max_preemptions=0)
    d.add("b", 8, max_tokens=12)
    d.step()
    d.plan(fails=True)
    d.collect()
    d.step()
    assert d.requests["b"].held.reserved
    d.add("a", 8, max_tokens=12)
    d.run()
    assert all(r.num_memory_preemptions == 0 for r in d.requests.values())


def test_p4_a_reservation_is_given_back_with_a_preemption_for_priority() -> None:
    d = Driver(num_blocks=6, width=1, caching=False, policy="priority", max_preemptions=0)
    d.add("low", 8, priority=5, max_tokens=12)
    d.step()
    assert d.requests["low"].held.reserved
    d.add("urgent", 20, priority=0, max_tokens=4)
    assert list(d.given(d.step())) == ["urgent"]
    d.run()
    assert all(d.output(name) == d.expected(name) for name in d.requests)


def test_p5_blocks_swapped_are_counted_in_the_step_that_copies_them() -> None:
    d = tight("swap")
    while d.scheduler.has_work:
        plan = d.plan()
        d.collect()
        record = d.records[-1]
        assert record.swapped_out_blocks == len(plan.copies_out)
        assert record.swapped_in_blocks == len(plan.copies_in)
