"""The door (rules S10, A1)."""

from __future__ import annotations

import pytest

from driver import Driver
from headway.errors import InvalidRequest, QueueFull, RequestTooLarge


def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers() -> None:
    d = Driver(max_model_len=20)
    with pytest.raises(RequestTooLarge, match=r"prompt: 20 tokens .* 20 tokens"):
        d.add("a", 20)
    d.add("b", 19)
    d.run()
    assert len(d.output("b")) == 1


def test_an_empty_prompt_and_unknown_tokens_are_refused_by_field() -> None:
    d = Driver()
    for options, field in (
        ({"prompt": []}, "prompt"),
        ({"prompt": [5, 1000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [5], "stop_token_ids": [1000]}, "stop_token_ids"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            d.add("a", **options)  # type: ignore[arg-type]
        assert caught.value.field == field
    assert not d.scheduler.has_work


def test_stop_tokens_that_leave_nothing_to_sample_are_refused() -> None:
    d = Driver(vocab_size=5)
    with pytest.raises(InvalidRequest, match="stop_token_ids: leave no token"):
        d.add("a", [1], max_tokens=4, min_tokens=1, stop_token_ids=[0, 1, 2, 3, 4])
    d.add("a", [1], max_tokens=4, stop_token_ids=[0, 1, 2, 3, 4])


def test_a1_the_limit_is_on_requests_that_were_never_admitted() -> None:
    d = Driver(width=1, max_reqs=2)
    d.add("running", 4, max_tokens=50)
    d.step()
    d.add("w1", 4)
    d.add("w2", 4)
    with pytest.raises(QueueFull, match=r"max_num_queued_reqs \(2\)"):
        d.add("w3", 4)
    d.abort("w1")
    d.add("w3", 4)
    d.run()
    assert len(d.ended) == 4


def test_a1_prompt_tokens_that_wait_are_limited_too() -> None:
    d = Driver(max_tokens=10)
    d.add("a", 6)
    with pytest.raises(QueueFull, match="max_num_queued_tokens"):
        d.add("b", 5)
    d.add("b", 4)


def test_a1_what_exceeds_a_limit_by_itself_is_too_large_and_not_a_matter_of_time() -> None:
    d = Driver(max_tokens=10, max_reqs=2)
    with pytest.raises(RequestTooLarge, match="max_num_queued_tokens"):
        d.add("a", 11)
    with pytest.raises(RequestTooLarge, match="max_num_queued_reqs"):
        d.scheduler.add([d.make(f"r{i}", 2) for i in range(3)], 0.0)
    assert not d.scheduler.has_work


def test_a1_several_requests_are_accepted_together_or_not_at_all() -> None:
    d = Driver(max_reqs=3)
    d.add("a", 4)
    d.add("b", 4)
    with pytest.raises(QueueFull):
        d.scheduler.add([d.make("c", 4), d.make("d", 4)], 0.0)
    assert d.scheduler.state.num_waiting == 2


def test_a1_the_retry_time_comes_from_the_drain_while_requests_were_queued() -> None:
    d = Driver(max_reqs=4, max_tokens=40)
    door = d.door
    requests = [d.make(f"r{i}", 10) for i in range(8)]

    def retry_after(now: float, **what: int) -> float | None:
        with pytest.raises(QueueFull) as caught:
            door.check_room(now, **what)
        return caught.value.retry_after_s

    for request in requests[:4]:
        door.enter(request, now=0.0)
    assert retry_after(5.0) is None
    for request, now in zip(requests[:4], (10.0, 20.0, 30.0, 30.0), strict=True):
        door.leave(request, now, admitted=now < 25 or request is requests[2])
    # An hour with nothing queued says nothing about how fast the queue drains.
    for request in requests[4:]:
        door.enter(request, now=3630.0)
    # Two more left in the 20 s after the first, and in the 5 s since.
    assert retry_after(3635.0) == pytest.approx(25.0 / 2)
    assert retry_after(3635.0, num_reqs=0, num_tokens=8) == pytest.approx(8 * 25.0 / 20)


def test_a1_room_is_asked_for_before_a_prompt_is_looked_at() -> None:
    d = Driver(max_reqs=1)
    d.add("a", 4)
    with pytest.raises(QueueFull):
        d.add("b", [-1])


def test_a1_room_can_be_asked_for_before_there_is_a_prompt() -> None:
    d = Driver(max_reqs=1)
    d.scheduler.check_room(0.0)
    d.add("a", 4)
    with pytest.raises(QueueFull):
        d.scheduler.check_room(0.0)


@pytest.mark.parametrize("priority", [None, "a", 1.5, True])
def test_a_priority_that_is_no_integer_is_refused_and_leaves_nothing(priority: object) -> None:
    d = Driver(policy="priority")
    with pytest.raises(InvalidRequest, match="priority: must be an integer"):
        d.add("a", 4, priority=priority)
    assert not d.scheduler.has_work


def test_a_priority_that_the_policy_does_not_heed_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="priority: needs scheduling_policy priority"):
        Driver().add("a", 4, priority=1)
    Driver(policy="priority").add("a", 4, priority=1)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"allowed_token_ids": [5, 1000]}, "allowed_token_ids"),
        ({"logit_bias": {1000: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1}, "allowed_token_ids"),
    ],
)
def test_constraints_that_cannot_be_met_are_refused(params: dict[str, object], field: str) -> None:
    d = Driver()
    with pytest.raises(InvalidRequest) as caught:
        d.add("a", 4, **params)  # type: ignore[arg-type]
    assert caught.value.field == field
    d.add("a", 4, allowed_token_ids=[5, 6], stop_token_ids=[5], min_tokens=1)


def test_allowed_tokens_that_bad_words_ban_are_refused() -> None:
    d = Driver()
    request = d.make("a", 4, allowed_token_ids=[5, 6])
    request.bad_words = ((5,), (6,))
    with pytest.raises(InvalidRequest, match="allowed_token_ids: bad_words bans every one"):
        d.scheduler.add([request], d.now)
    request.bad_words = ((5,), (6, 7))
    d.scheduler.add([request], d.now)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_the_number_of_log_probabilities_is_limited_and_all_of_them_counted(field: str) -> None:
    d = Driver()
    assert getattr(d.add("all", 4, **{field: -1}).params, field) == 1000
    assert getattr(d.add("many", 4, **{field: 2000}).params, field) == 1000
    limited = Driver(max_logprobs=20)
    for asked in (21, -1):
        with pytest.raises(InvalidRequest, match=rf"{field}: {asked} is more than max_logprobs"):
            limited.add("a", 4, **{field: asked})
    assert getattr(limited.add("a", 4, **{field: 20}).params, field) == 20
