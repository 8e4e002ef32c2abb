"""One test or more for each rule of a step; the names in brackets are the rules'."""

from __future__ import annotations

import pytest

from driver import Driver
from headway.core.plan import ChunkError
from headway.core.request import FinishReason, RequestState
from headway.errors import InvalidRequest


def test_s1_a_prompt_is_computed_in_chunks_and_sampled_once_it_is_whole() -> None:
    d = Driver(budget=8)
    d.add("a", 20, max_tokens=3)
    plans = [d.step() for _ in range(5)]
    assert [d.given(p) for p in plans] == [{"a": 8}, {"a": 8}, {"a": 4}, {"a": 1}, {"a": 1}]
    assert [p.chunks[0].sample is not None for p in plans] == [False, False, True, True, True]
    assert d.output("a") == d.expected("a")


def test_s2_budget_and_width_are_never_exceeded_and_the_budget_is_used() -> None:
    d = Driver(budget=16, width=3)
    for name in "abcde":
        d.add(name, 10, max_tokens=6)
    first = d.step()
    assert d.given(first) == {"a": 10, "b": 6}
    second = d.step()
    assert d.given(second) == {"a": 1, "b": 4, "c": 10}
    assert d.records[-1].waiting == {"width": 2}
    d.run()
    assert all(record.num_tokens <= 16 and record.num_running <= 3 for record in d.records)
    assert all(d.output(name) == d.expected(name) for name in "abcde")


def test_s2_budget_below_width_is_a_programming_error() -> None:
    with pytest.raises(AssertionError):
        Driver(budget=4, width=8)


def test_s3_running_come_first_in_order_of_admission_and_a_slot_is_free_in_the_next_plan() -> None:
    d = Driver(width=2)
    d.add("a", 4, max_tokens=1)
    d.add("b", 4, max_tokens=3)
    d.add("c", 4, max_tokens=3)
    assert list(d.given(d.step())) == ["a", "b"]
    assert list(d.given(d.step())) == ["b", "c"]


def test_s4_a_long_prefill_is_capped_only_while_others_are_there() -> None:
    d = Driver(budget=32, threshold=5)
    d.add("long", 60, max_tokens=1)
    assert d.given(d.step()) == {"long": 32}
    d.add("other", 3, max_tokens=20)
    assert d.given(d.step()) == {"long": 5, "other": 3}
    assert d.given(d.step()) == {"long": 5, "other": 1}


def test_s4_a_request_never_grows_past_the_model_length() -> None:
    d = Driver(max_model_len=10)
    d.add("a", 7, max_tokens=100)
    d.run()
    assert len(d.requests["a"].token_ids) == 10
    assert d.ended[0].finish_reason == "length"


def test_s5_a_request_that_gets_nothing_does_not_stop_those_behind_it() -> None:
    d = Driver()
    d.add("last", 4, max_tokens=2)
    d.add("more", 4, max_tokens=9)
    d.plan()
    # The first one's last token is in flight: there is nothing to give it.
    d.plan()
    d.collect()
    third = d.plan()
    assert d.given(third) == {"more": 1}


def test_s6_fcfs_preempts_the_last_of_running_and_gives_its_tokens_back() -> None:
    d = Driver(num_blocks=6, budget=16, caching=False, reserve=False)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    d.run()
    assert d.requests["a"].num_preemptions == 0
    assert d.requests["b"].num_preemptions > 0
    assert d.output("a") == d.expected("a")
    assert d.output("b") == d.expected("b")


def test_s6_priority_preempts_the_worst_even_if_it_was_already_scheduled() -> None:
    d = Driver(num_blocks=6, policy="priority", caching=False, reserve=False)
    d.add("worst", 8, priority=5, max_tokens=12)
    d.step()
    d.add("best", 7, priority=1, max_tokens=12)
    while d.requests["worst"].num_preemptions == 0:
        plan = d.step()
    assert d.given(plan) == {"best": 1}
    assert d.records[-1].preemptions == {"memory": 1}
    d.run()
    assert d.requests["best"].num_preemptions == 0
    assert d.output("worst") == d.expected("worst")


def test_s6_what_a_victim_was_given_and_had_hashed_in_this_step_is_taken_back() -> None:
    d = Driver(
        num_blocks=9, block_size=2, budget=7, width=4, policy="priority", reserve=False, threshold=4
    )
    d.add("victim", 17, priority=9, max_tokens=1)
    d.step()
    d.add("urgent", 2, priority=0, max_tokens=3)
    d.add("third", 1, priority=1, max_tokens=1)
    while not d.requests["victim"].num_preemptions:
        plan = d.step()
    # Its four tokens would have completed two blocks; nobody may find them.
    assert "victim" not in d.given(plan)
    d.run()
    for name in d.requests:
        assert d.output(name) == d.expected(name)


def test_s6_the_victims_tokens_go_to_those_behind() -> None:
    d = Driver(
        num_blocks=10,
        block_size=2,
        budget=7,
        width=4,
        policy="priority",
        reserve=False,
        caching=False,
        threshold=4,
    )
    d.add("victim", 17, priority=9, max_tokens=1)
    d.step()
    d.add("urgent", 2, priority=0, max_tokens=6)
    d.add("last", 12, priority=1, max_tokens=1)
    while not d.requests["victim"].num_preemptions:
        plan = d.step()
    # Had the victim's four not come back, two would have been left.
    assert d.given(plan) == {"urgent": 1, "last": 4}


def test_s7_nothing_is_admitted_in_a_step_that_preempted() -> None:
    d = Driver(num_blocks=6, budget=16, caching=False, reserve=False)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    while not d.records or not d.records[-1].preemptions:
        d.step()
    assert d.records[-1].waiting == {"preempted": 1}
    assert all(not entry.admission for entry in d.records[-1].batch)


def test_s8_without_chunking_a_prompt_waits_for_a_whole_budget_and_is_not_skipped() -> None:
    d = Driver(budget=20, max_model_len=20, chunked=False)
    d.add("a", 12, max_tokens=3)
    d.add("big", 15, max_tokens=3)
    d.add("small", 2, max_tokens=3)
    assert d.given(d.step()) == {"a": 12}
    assert d.records[-1].waiting == {"budget": 2}
    assert d.given(d.step()) == {"a": 1, "big": 15, "small": 2}


def test_s8_without_chunking_a_budget_below_the_model_length_is_a_programming_error() -> None:
    with pytest.raises(AssertionError):
        Driver(budget=20, max_model_len=21, chunked=False)


def test_s10_a_request_as_long_as_the_pool_runs() -> None:
    d = Driver(num_blocks=5, watermark=0.5)
    d.add("a", 15, max_tokens=None)
    d.run()
    assert len(d.requests["a"].token_ids) == 20
    assert d.output("a") == d.expected("a")


def test_s11_the_next_plan_refers_to_the_token_in_flight() -> None:
    d = Driver()
    d.add("a", 5, max_tokens=4)
    d.plan()
    second = d.plan()
    (chunk,) = second.chunks
    assert chunk.follows_in_flight
    assert chunk.token_ids == ()
    assert (chunk.start, chunk.num_tokens) == (5, 1)
    d.collect()
    d.collect()
    d.run()
    assert d.output("a") == d.expected("a")


def test_s11_ends_known_beforehand_are_never_planned_past() -> None:
    d = Driver()
    d.add("a", 5, max_tokens=2)
    d.plan()
    d.plan()
    d.collect()
    assert not d.plan().chunks
    d.collect()
    d.collect()
    assert sum(record.discarded_tokens for record in d.records) == 0
    assert d.output("a") == d.expected("a")


def test_s11_a_stop_token_costs_one_computed_token_which_is_discarded() -> None:
    d = Driver()
    stop = Driver()
    stop.add("a", [5, 6, 7], max_tokens=1)
    stop.run()
    (token,) = stop.output("a")
    d.add("a", [5, 6, 7], max_tokens=9, stop_token_ids=[token])
    d.plan()
    d.plan()
    d.collect()
    assert d.requests["a"].finish_reason is FinishReason.STOP
    assert d.kv.num_used == 0
    d.collect()
    assert [record.discarded_tokens for record in d.records] == [0, 1]
    assert d.output("a") == [token]


def test_s11_the_late_token_of_a_preempted_request_is_kept_and_may_end_it() -> None:
    d = Driver(num_blocks=4, policy="priority", caching=False, reserve=False)
    d.add("urgent", 7, priority=0, max_tokens=8)
    d.step()
    d.add("late", 8, priority=9, max_tokens=1)
    d.plan()
    d.plan()  # `urgent` needs a block: `late`, whose only token is in flight, gives way
    assert d.requests["late"].state is RequestState.PREEMPTED
    d.collect()
    assert d.requests["late"].finish_reason is FinishReason.LENGTH
    assert d.output("late") == d.expected("late")


def test_s12_priority_orders_by_priority_then_arrival() -> None:
    d = Driver(width=1, budget=64, policy="priority")
    for name, priority in (("a", 2), ("b", 1), ("c", 1), ("d", -3)):
        d.add(name, 4, priority=priority, max_tokens=1)
    order = [next(iter(d.given(d.step()))) for _ in range(4)]
    assert order == ["d", "b", "c", "a"]


def test_s16_the_same_calls_give_the_same_plans() -> None:
    def plans() -> list[object]:
        d = Driver(num_blocks=10, budget=16, policy="priority", watermark=0.1)
        for i in range(12):
            d.add(f"r{i}", [i % 3] * 9 + [i], priority=i % 4, max_tokens=7)
        out: list[object] = []
        while d.scheduler.has_work:
            out.append(d.plan())
            d.collect()
        return out

    assert plans() == plans()


def test_p1_a_preempted_request_keeps_its_output_and_its_place() -> None:
    d = Driver(num_blocks=6, budget=16, caching=False, reserve=False)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    d.add("c", 8, max_tokens=2)
    while d.requests["b"].num_preemptions == 0:
        d.step()
    kept = d.output("b")
    assert kept
    assert d.requests["b"].num_computed_tokens == 0
    d.run()
    assert d.output("b")[: len(kept)] == kept
    order = [r.request_id for r in d.ended]
    assert order.index("b") < order.index("c")


def test_p5_recomputed_tokens_are_counted_once() -> None:
    d = Driver(num_blocks=6, budget=16, caching=False, reserve=False)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    d.run()
    total = sum(entry.num_tokens for record in d.records for entry in record.batch)
    needed = 2 * (8 + 12 - 1)
    assert sum(record.recomputed_tokens for record in d.records) == total - needed > 0


def test_a3_a_row_that_fails_ends_alone_and_its_blocks_are_zeroed_before_reuse() -> None:
    d = Driver(num_blocks=8)
    d.add("bad", 8, max_tokens=9)
    d.add("good", 8, max_tokens=4)
    plan = d.plan()
    d.collect(errors={0: ChunkError("NaN logits")})
    assert d.errors == {"bad": ChunkError("NaN logits")}
    assert d.requests["bad"].finish_reason is FinishReason.ERROR
    bad_blocks = set(plan.chunks[0].block_table)
    d.add("next", d.prompts["bad"], max_tokens=4)
    plan = d.step()
    assert d.records[-1].batch[-1].hit_tokens == 0
    in_use = {block for chunk in plan.chunks for block in chunk.block_table}
    assert set(plan.zero_blocks) == bad_blocks & in_use != set()
    d.run()
    assert d.output("good") == d.expected("good")
    assert d.output("next") == d.expected("next")


def test_a3_blocks_of_a_row_that_fails_after_its_request_was_aborted_are_not_found() -> None:
    d = Driver(num_blocks=8)
    d.add("gone", 8, max_tokens=9)
    d.plan()
    d.abort("gone")
    d.collect(errors={0: ChunkError("NaN logits")})
    d.add("next", d.prompts["gone"], max_tokens=2)
    plan = d.step()
    assert d.records[-1].batch[-1].hit_tokens == 0
    assert plan.zero_blocks
    d.run()
    assert d.output("next") == d.expected("next")


def test_a3_after_a_failed_step_its_requests_run_one_at_a_time_until_past_where_they_stood() -> (
    None
):
    d = Driver()
    for name in "abc":
        d.add(name, 6, max_tokens=5)
    d.step()
    d.plan(fails=True)
    d.collect()
    assert d.records[-1].failed
    assert d.records[-1].discarded_tokens == 3
    # Of the 7 tokens each, the first block is still in the prefix cache.
    assert [d.given(d.step()) for _ in range(3)] == [{"a": 3}, {"b": 3}, {"c": 3}]
    assert list(d.given(d.step())) == ["a", "b", "c"]
    d.run()
    assert all(d.output(name) == d.expected(name) for name in "abc")
    assert all(r.num_preemptions == 0 for r in d.requests.values())


def test_a3_the_one_that_fails_alone_ends_with_error() -> None:
    d = Driver()
    for name in "abc":
        d.add(name, 6, max_tokens=5)
    d.plan(fails=True)
    d.collect()
    d.plan(fails=True)
    d.collect()
    assert d.errors == {"a": ChunkError("the step failed")}
    d.run()
    assert d.output("b") == d.expected("b")
    assert d.output("c") == d.expected("c")


def test_a3_blocks_written_by_a_failed_step_are_not_found_again() -> None:
    d = Driver()
    d.add("a", 8, max_tokens=1)
    d.plan(fails=True)
    d.collect()
    d.add("b", d.prompts["a"], max_tokens=1)
    d.run()
    assert d.records[1].batch[0].hit_tokens == 0
    assert d.output("b") == d.expected("b")


def test_a3_a_failed_step_drops_the_plans_after_it() -> None:
    d = Driver()
    d.add("a", 6, max_tokens=5)
    d.plan(fails=True)
    d.plan()
    d.collect()
    assert [record.failed for record in d.records] == [True, True]
    d.run()
    assert d.output("a") == d.expected("a")


def test_a3_a_suspect_runs_alone_for_as_many_steps_as_it_takes() -> None:
    d = Driver(budget=8, width=2, caching=False)
    d.add("a", 20, max_tokens=3)
    d.step()
    d.step()
    d.add("b", 2, max_tokens=3)
    d.plan(fails=True)
    d.collect()
    assert [list(d.given(d.step())) for _ in range(4)] == [["a"], ["a"], ["a"], ["b"]]
    assert d.records[-1].waiting == {}
    assert d.records[-2].waiting == {"isolated": 1}
    assert d.given(d.step()) == {"a": 1, "b": 1}


def test_a3_a_second_failure_isolates_until_where_the_request_stood_then() -> None:
    d = Driver(num_blocks=6, budget=4, width=4, caching=False, reserve=False, policy="priority")
    a = d.add("a", 8, priority=9, max_tokens=12)
    for _ in range(7):
        d.step()
    d.plan(fails=True)
    d.collect()
    while a.num_computed_tokens < a.isolated_until:
        d.step()
    assert a.isolated_until == 14
    # Preempted, it starts again, and is in its first chunk when a step fails.
    d.add("u", 8, priority=0, max_tokens=8)
    while not a.num_preemptions:
        d.step()
    d.add("v", 3, priority=5, max_tokens=8)
    while "a" not in d.given(d.step()):
        pass
    plan = d.plan(fails=True)
    d.collect()
    assert a.isolated_until == {chunk.request_id: chunk.end for chunk in plan.chunks}["a"] < 14
    d.run()
    assert all(d.output(name) == d.expected(name) for name in d.requests)


def test_a3_only_who_was_alone_in_the_failed_step_is_at_fault() -> None:
    d = Driver()
    for name in "ab":
        d.add(name, 6, max_tokens=5)
    d.plan(fails=True)
    d.collect()
    d.plan()
    d.plan(fails=True)  # made while `a` is the suspect; by then it is `b`
    d.collect()
    d.collect()
    assert d.errors == {}
    d.run()
    assert all(d.output(name) == d.expected(name) for name in "ab")


def test_a3_blocks_that_a_failed_step_was_to_zero_are_zeroed_by_the_next() -> None:
    d = Driver(num_blocks=2, caching=False)
    d.add("bad", 8, max_tokens=0)
    d.plan()
    d.collect(errors={0: ChunkError("NaN")})
    d.add("next", 8, max_tokens=0)
    assert set(d.plan(fails=True).zero_blocks) == {0, 1}
    d.collect()
    assert set(d.plan().zero_blocks) == {0, 1}


def test_a3_nan_seen_late_poisons_the_blocks_taken_since() -> None:
    d = Driver(num_blocks=4)
    d.add("bad", 4, max_tokens=5)
    d.plan()
    d.plan()
    d.collect(errors={0: ChunkError("NaN")})
    d.collect()
    d.add("next", 8, max_tokens=1)
    assert set(d.plan().zero_blocks) == {0, 1}


def test_what_an_empty_plan_cost_is_reported_with_the_next_outcome() -> None:
    d = Driver(num_blocks=5, caching=False, reserve=False)
    d.add("a", 8, max_tokens=2)
    d.add("b", 7, max_tokens=9)
    d.plan()
    d.plan()
    d.collect()
    assert not d.plan().chunks  # `b` gave way to itself, `a` waits for its last token
    assert d.requests["b"].num_preemptions == 1
    d.collect()
    d.run()
    assert sum(record.preemptions.get("memory", 0) for record in d.records) == 1


def test_every_accepted_request_ends_once_and_all_blocks_come_back() -> None:
    d = Driver(num_blocks=12)
    for i in range(20):
        d.add(f"r{i}", 9, max_tokens=i % 5)
    d.step()
    assert d.abort("r3")
    assert d.abort("r19")
    assert not d.abort("r19")
    d.run()
    assert sorted(r.request_id for r in d.ended) == sorted(d.requests)
    assert d.kv.num_used == 0


def test_an_abort_frees_its_blocks_for_the_next_plan() -> None:
    d = Driver(num_blocks=4, caching=False)
    d.add("a", 14, max_tokens=2)
    d.step()
    d.add("b", 14, max_tokens=2)
    assert "b" not in d.given(d.plan())
    d.abort("a")
    assert d.given(d.plan()) == {"b": 14}


def test_max_tokens_0_computes_the_prompt_and_samples_nothing() -> None:
    d = Driver(budget=8, max_model_len=12)
    d.add("a", 12, max_tokens=0)
    plans = [d.step(), d.step()]
    assert [d.given(p) for p in plans] == [{"a": 8}, {"a": 4}]
    assert all(p.chunks[0].sample is None for p in plans)
    assert d.requests["a"].finish_reason is FinishReason.LENGTH
    assert d.output("a") == []


def test_min_tokens_suppresses_the_stop_tokens_until_then() -> None:
    d = Driver(vocab_size=4)
    d.add("a", [1, 2, 3], max_tokens=8, min_tokens=3, stop_token_ids=[0, 1, 2])
    d.step()
    d.run()
    assert len(d.output("a")) >= 4 or d.output("a")[-1] in (0, 1, 2)
    assert all(token == 3 for token in d.output("a")[:3])


def test_a_request_id_in_use_is_refused() -> None:
    d = Driver()
    d.add("a", 4)
    with pytest.raises(InvalidRequest, match="request_id"):
        d.scheduler.add([d.make("a", 4)], 0.0)


def test_illegal_transitions_raise() -> None:
    request = Driver().make("a", 4)
    with pytest.raises(RuntimeError, match="WAITING → PREEMPTED"):
        request.move_to(RequestState.PREEMPTED)
    request.move_to(RequestState.RUNNING)
    request.move_to(RequestState.SWAPPED)
    request.move_to(RequestState.RUNNING)
    request.end(FinishReason.STOP)
    for state in RequestState:
        with pytest.raises(RuntimeError, match="not legal"):
            request.move_to(state)


def test_the_record_of_a_step_says_what_it_did() -> None:
    d = Driver(num_blocks=16, width=2)
    prompt = list(range(8))
    d.add("a", [*prompt, 50], max_tokens=2)
    d.run()
    d.add("b", [*prompt, 60], max_tokens=2)
    d.add("c", 8, max_tokens=2)
    d.add("d", 8, max_tokens=2)
    d.step()
    record = d.records[-1]
    b, c = record.batch
    assert (b.request_id, b.admission, b.computed_before, b.hit_tokens) == ("b", "first", 8, 8)
    assert (b.lookup_tokens, b.num_tokens) == (9, 1)
    assert (c.hit_tokens, c.num_tokens) == (0, 8)
    assert record.num_tokens == 9
    assert record.waiting == {"width": 1}
    assert record.duration_s == 1.0
    assert record.blocks_used + record.blocks_cached + record.blocks_free == 16
    assert record.num_running == 2


def test_evictions_are_counted_in_the_step_that_made_them() -> None:
    d = Driver(num_blocks=4)
    d.add("a", 12, max_tokens=1)
    d.run()
    d.add("b", 12, max_tokens=1)
    d.run()
    assert [record.evictions for record in d.records] == [0, 2]
