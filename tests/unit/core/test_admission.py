"""Who of the waiting is let in: skip-ahead, places taken, prefixes shared (S9, S12, S15)."""

from __future__ import annotations

import pytest

from driver import Driver
from headway.core.request import RequestState

SHARED = list(range(100, 116))


def blocked_head(skip_ahead: int) -> Driver:
    """`head` needs more blocks than are free; the small ones behind it fit."""
    d = Driver(num_blocks=8, caching=False, skip_ahead=skip_ahead)
    d.add("busy", 12, max_tokens=12)
    d.step()
    d.add("head", 24, max_tokens=4)
    for name in "xyz":
        d.add(name, 3, max_tokens=1)
    return d


@pytest.mark.parametrize("skip_ahead", [0, 1, 2])
def test_s9_so_many_may_go_before_a_head_that_lacks_blocks(skip_ahead: int) -> None:
    d = blocked_head(skip_ahead)
    d.step()
    assert next(iter(d.given(d.step()))) == "busy"
    gone_before = [name for name in "xyz" if d.requests[name].first_scheduled_s is not None]
    assert gone_before == list("xyz"[:skip_ahead])
    assert d.requests["head"].num_skips == skip_ahead
    assert d.records[-1].waiting == {"blocks": 4 - skip_ahead}
    d.run()
    later = [d.requests[name].admitted_s for name in "xyz"[skip_ahead:]]
    assert d.requests["head"].admitted_s <= min(later)


def test_s9_skips_are_counted_over_the_whole_wait_and_not_a_step() -> None:
    d = blocked_head(2)
    d.step()
    d.add("w", 3, max_tokens=1)
    d.step()
    assert d.requests["w"].first_scheduled_s is None
    d.run()
    assert d.requests["head"].admitted_s <= d.requests["w"].admitted_s


def test_s9_one_that_the_policy_ranks_ahead_becomes_the_head_and_is_no_skip() -> None:
    d = Driver(
        num_blocks=8, caching=False, skip_ahead=1, policy="priority", preempt_for_priority=False
    )
    d.add("busy", 12, priority=1, max_tokens=12)
    d.step()
    d.add("head", 24, priority=1, max_tokens=4)
    d.step()
    d.add("urgent", 3, priority=0, max_tokens=1)
    d.step()
    assert d.requests["urgent"].first_scheduled_s is not None
    assert d.requests["head"].num_skips == 0


def full_width(**options: object) -> Driver:
    """Two running requests of priority 3 and 5 fill the width."""
    d = Driver(width=2, policy="priority", **options)  # type: ignore[arg-type]
    d.add("three", 8, priority=3, max_tokens=20)
    d.add("five", 8, priority=5, max_tokens=20)
    d.step()
    return d


def test_s12_a_more_urgent_request_takes_the_place_of_the_worst() -> None:
    d = full_width()
    d.add("urgent", 4, priority=0, max_tokens=4)
    d.add("next", 4, priority=1, max_tokens=4)
    assert list(d.given(d.step())) == ["three", "urgent"]
    assert d.records[-1].preemptions == {"priority": 1}
    assert d.requests["five"].state is RequestState.PREEMPTED
    assert d.requests["five"].num_memory_preemptions == 0
    # One place is taken in a step.
    assert list(d.given(d.step())) == ["urgent", "next"]
    d.run()
    assert all(d.output(name) == d.expected(name) for name in d.requests)


def test_s12_nobody_gives_way_to_an_equal_or_where_the_option_is_off() -> None:
    d = full_width()
    d.add("equal", 4, priority=5, max_tokens=4)
    d.step()
    assert not d.records[-1].preemptions
    off = full_width(preempt_for_priority=False)
    off.add("urgent", 4, priority=0, max_tokens=4)
    off.step()
    assert not off.records[-1].preemptions


def test_s12_a_victim_is_not_admitted_again_in_the_same_step() -> None:
    d = Driver(num_blocks=8, width=2, policy="priority", caching=False)
    d.add("low", 16, priority=5, max_tokens=4)
    d.step()
    d.add("urgent", 16, priority=0, max_tokens=4)  # a slot is free, blocks are not
    assert list(d.given(d.step())) == ["urgent"]
    assert d.records[-1].waiting == {"preempted": 1}


def test_s12_where_all_that_rank_worse_free_too_little_none_gives_way() -> None:
    d = Driver(num_blocks=8, policy="priority", caching=False)
    d.add("better", 20, priority=0, max_tokens=4)
    d.add("worse", 4, priority=5, max_tokens=4)
    d.step()
    d.add("middle", 16, priority=3, max_tokens=4)
    d.step()
    assert not d.records[-1].preemptions
    assert d.requests["middle"].first_scheduled_s is None


def test_s12_one_that_waited_long_is_not_preempted_for_what_it_had_reached() -> None:
    d = Driver(width=1, policy="priority", policy_options={"aging_s": 10.0})
    d.add("busy", 4, priority=0, max_tokens=10)
    d.step()
    d.add("old", 4, priority=3, max_tokens=10)
    d.now += 30
    while d.requests["old"].state is not RequestState.RUNNING:
        d.step()
    d.add("urgent", 4, priority=0, max_tokens=2)
    d.run()
    assert d.requests["old"].num_preemptions == 0
    assert d.requests["old"].admitted_s < d.requests["urgent"].admitted_s


def test_s15_two_with_the_same_prefix_do_not_both_compute_it() -> None:
    d = Driver(budget=64)
    d.add("a", [*SHARED, 1], max_tokens=2)
    d.add("b", [*SHARED, 2], max_tokens=2)
    # Its prefix is computed by this very step: it is read in it.
    assert d.given(d.step()) == {"a": 17, "b": 1}
    d.run()
    assert d.output("b") == d.expected("b")


def test_s15_a_request_waits_while_a_running_one_computes_what_it_can_use() -> None:
    d = Driver(budget=8)
    d.add("a", [*SHARED, 1], max_tokens=2)
    d.add("b", [*SHARED, 2], max_tokens=2)
    d.add("other", 2, max_tokens=2)
    assert d.given(d.step()) == {"a": 8}
    assert d.given(d.step()) == {"a": 8}
    assert d.given(d.step()) == {"a": 1, "b": 1, "other": 2}
    d.run()
    assert all(d.output(name) == d.expected(name) for name in d.requests)


def test_s15_the_others_are_not_held_up_and_it_counts_as_no_skip() -> None:
    d = Driver(budget=16, threshold=4)
    d.add("a", [*SHARED, 1], max_tokens=2)
    d.add("b", [*SHARED, 2], max_tokens=2)
    d.add("other", 2, max_tokens=2)
    assert d.given(d.step()) == {"a": 4, "other": 2}
    assert d.records[-1].waiting == {"prefix": 1}
    assert d.requests["b"].num_skips == 0


def test_s15_with_the_option_off_both_compute_it() -> None:
    d = Driver(budget=16, threshold=4, sharing=False)
    d.add("a", [*SHARED, 1], max_tokens=2)
    d.add("b", [*SHARED, 2], max_tokens=2)
    assert d.given(d.step()) == {"a": 4, "b": 4}


def test_s15_a_salt_of_its_own_is_not_waited_for() -> None:
    d = Driver(budget=16, threshold=4)
    d.add("a", [*SHARED, 1], max_tokens=2, salt="a")
    d.add("b", [*SHARED, 2], max_tokens=2, salt="b")
    assert d.given(d.step()) == {"a": 4, "b": 4}


def test_s15_it_stops_waiting_after_8_steps_in_which_nothing_came_for_it() -> None:
    # Blocks of 16 tokens, 1 token a step: the block that `b` lacks takes 16 steps.
    d = Driver(num_blocks=16, block_size=16, budget=16, threshold=1)
    d.add("a", [*SHARED, *SHARED, 1], max_tokens=2)
    d.add("b", [*SHARED, *SHARED, 2], max_tokens=2)
    steps = 0
    while d.requests["b"].first_scheduled_s is None:
        d.step()
        steps += 1
    assert steps == 10  # the first found it at its 0 blocks, and 8 more passed in vain
    d.run()
    assert d.output("b") == d.expected("b")


def test_s15_if_the_other_stops_running_nothing_is_waited_for() -> None:
    d = Driver(budget=16, threshold=4)
    d.add("a", [*SHARED, 1], max_tokens=2)
    d.add("b", [*SHARED, 2], max_tokens=2)
    d.step()
    d.abort("a")
    assert d.given(d.step()) == {"b": 13}
    assert d.requests["b"].num_cached_tokens == 4
