"""Who waits too long, or goes away (rule A2), and the samples of one prompt (A1)."""

from __future__ import annotations

import pytest

from driver import Driver
from headway.core.request import FinishReason
from headway.errors import QueueFull


def test_a2_a_request_never_admitted_ends_with_timeout_before_any_token_of_it_is_computed() -> None:
    d = Driver(width=1)
    d.add("busy", 4, max_tokens=20)
    d.step()
    d.add("patient", 4)
    d.add("hasty", 4, queue_timeout_s=10.0)
    d.now += 9
    plan = d.plan()  # a second later: the ten are over
    assert "hasty" not in d.given(plan)
    assert d.requests["hasty"].finish_reason is FinishReason.TIMEOUT
    outcome = d.collect()
    assert [u.request.request_id for u in outcome.updates if u.finish_reason] == ["hasty"]
    assert d.ended[-1].finish_reason == "timeout"
    assert d.ended[-1].first_scheduled_s is None
    d.run()
    assert d.output("patient") == d.expected("patient")


def test_a2_a_slot_that_comes_free_in_the_same_plan_is_too_late() -> None:
    d = Driver(width=1)
    d.add("busy", 4, max_tokens=1)
    d.step()
    d.add("hasty", 4, queue_timeout_s=1.0)
    assert not d.plan().to_run
    assert d.requests["hasty"].finish_reason is FinishReason.TIMEOUT
    d.collect()


def test_a2_who_was_admitted_does_not_time_out_even_preempted() -> None:
    d = Driver(num_blocks=6, caching=False, reserve=False)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12, queue_timeout_s=3.0)
    d.run()
    assert d.requests["b"].num_preemptions > 0
    assert d.requests["b"].finish_reason is FinishReason.LENGTH


def test_a2_without_a_plan_to_run_the_end_is_reported_by_flush() -> None:
    d = Driver()
    d.add("hasty", 4, queue_timeout_s=1.0)
    d.now += 5
    assert not d.plan().to_run
    assert [record.finish_reason for record in d.collect().ended] == ["timeout"]
    assert not d.scheduler.has_work


@pytest.mark.parametrize("running", [True, False])
def test_a2_a_client_that_goes_away_frees_its_place_for_the_next_plan(running: bool) -> None:
    d = Driver(width=1)
    d.add("gone", 4, max_tokens=20)
    if running:
        d.step()
    d.add("next", 4)
    assert d.abort("gone")
    assert d.kv.num_used == 0
    assert list(d.given(d.step())) == ["next"]
    assert d.ended[0].finish_reason == "abort"


def test_a1_n_samples_count_n_and_their_prompt_once() -> None:
    d = Driver(max_reqs=4, max_tokens=20)
    d.scheduler.add([d.make(f"a{i}", 12, n=3, index=i) for i in range(3)], d.now)
    assert (d.door.num_queued_reqs, d.door.num_queued_tokens) == (3, 12)
    with pytest.raises(QueueFull, match="max_num_queued_reqs"):
        d.scheduler.add([d.make(f"b{i}", 2, n=2, index=i) for i in range(2)], d.now)
    with pytest.raises(QueueFull, match="max_num_queued_tokens"):
        d.add("c", 9)
    d.add("d", 8)
    d.step()
    assert (d.door.num_queued_reqs, d.door.num_queued_tokens) == (0, 0)


def test_a2_requests_that_were_admitted_are_not_held_until_they_would_have_expired() -> None:
    d = Driver(num_blocks=64)
    for i in range(500):
        d.add(f"r{i}", 2, max_tokens=1, queue_timeout_s=1e9)
        d.run()
    assert len(d.scheduler._roster._expiring) <= 66
    d.add("late", 2, queue_timeout_s=0.5)
    d.now += 1
    d.step()
    assert d.requests["late"].finish_reason is FinishReason.TIMEOUT
