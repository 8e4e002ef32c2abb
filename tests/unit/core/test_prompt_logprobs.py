"""Log-probabilities of the prompt (rule K3), and what a sample is told of its request."""

from __future__ import annotations

from driver import Driver
from headway.core.request import RequestState


def rows_of(plan: object) -> list[tuple[int, tuple[int, ...]]]:
    chunks = plan.chunks  # type: ignore[attr-defined]
    return [(c.prompt_rows.first, c.prompt_rows.token_ids) for c in chunks if c.prompt_rows]


def test_k3_every_prompt_token_but_the_first_is_foretold_once_over_the_chunks() -> None:
    d = Driver(budget=8, width=8)
    d.add("a", list(range(20)), prompt_logprobs=3, max_tokens=2)
    plans = [d.step() for _ in range(3)]
    assert [rows_of(plan) for plan in plans] == [
        [(1, tuple(range(1, 9)))],
        [(9, tuple(range(9, 17)))],
        [(17, (17, 18, 19))],
    ]
    d.run()
    assert d.rows["a"] == list(range(1, 20))


def test_k3_with_no_output_the_rows_still_come() -> None:
    d = Driver()
    d.add("a", list(range(9)), prompt_logprobs=0, max_tokens=0)
    d.run()
    assert d.rows["a"] == list(range(1, 9))
    assert d.ended[0].finish_reason == "length"


def test_k3_a_request_that_wants_its_prompt_reads_no_hits_but_leaves_some() -> None:
    d = Driver()
    prompt = list(range(20))
    d.add("first", prompt)
    d.run()
    d.add("wants", prompt, prompt_logprobs=0)
    d.step()
    entry = d.records[-1].batch[0]
    assert (entry.computed_before, entry.lookup_tokens, entry.hit_tokens) == (0, 0, 0)
    d.run()
    assert d.rows["wants"] == prompt[1:]
    salted = d.add("leaves", prompt, prompt_logprobs=0, salt="s")
    d.run()
    assert salted.num_cached_tokens == 0
    d.add("reads", prompt, salt="s")
    d.step()
    assert d.records[-1].batch[0].hit_tokens == 16


def test_k3_rows_given_before_a_preemption_are_not_given_again() -> None:
    d = Driver(num_blocks=8, block_size=4, budget=8, width=8, reserve=False)
    d.add("old", 12, max_tokens=16)
    d.add("young", list(range(12)), prompt_logprobs=0, max_tokens=12)
    young = d.requests["young"]
    while young.state is not RequestState.PREEMPTED:
        d.step()
        assert d.scheduler.has_work
    assert young.num_prompt_rows > 0
    d.run()
    assert d.rows["young"] == list(range(1, 12))
    assert young.num_preemptions > 0


def test_k3_rows_that_a_plan_in_flight_will_give_are_dropped_where_they_came_already() -> None:
    d = Driver(budget=8, width=8)
    d.add("a", list(range(20)), prompt_logprobs=0, max_tokens=1)
    d.plan()
    d.plan()
    d.collect()
    d.collect()
    assert d.rows["a"] == list(range(1, 17))
    d.run()
    assert d.rows["a"] == list(range(1, 20))


def test_a_failed_step_gives_each_row_once() -> None:
    d = Driver(budget=8, width=8)
    d.add("a", list(range(20)), prompt_logprobs=0, max_tokens=1)
    d.step()
    d.plan(fails=True)
    d.collect()
    d.run()
    assert d.rows["a"] == list(range(1, 20))


def test_a_sample_is_told_of_prompt_and_output_only_where_something_looks_at_them() -> None:
    d = Driver()
    d.add("plain", [1, 2, 3], max_tokens=3)
    d.add("present", [1, 2, 3], max_tokens=3, presence_penalty=1.0)
    repeat = d.add("repeat", [1, 2, 3], max_tokens=3, repetition_penalty=1.5)
    d.step()
    samples = {c.request_id: c.sample for c in d.step().chunks}
    assert all(samples.values())
    told = {name: (s.prompt_ids, s.output_ids) for name, s in samples.items() if s}
    assert told["plain"] == ((), ())
    assert told["present"] == ((), tuple(d.output("present")[:1]))
    assert told["repeat"] == ((1, 2, 3), tuple(d.output("repeat")[:1]))
    assert told["repeat"][0] is repeat.sample.prompt_ids
    d.run()


def test_a_token_in_flight_is_not_among_the_output_that_a_sample_is_told() -> None:
    d = Driver()
    d.add("a", [1, 2, 3], max_tokens=4, frequency_penalty=1.0)
    d.plan()
    [chunk] = d.plan().chunks
    assert chunk.follows_in_flight
    assert chunk.sample is not None
    assert chunk.sample.output_ids == ()
    d.collect()
    d.collect()
    d.run()
