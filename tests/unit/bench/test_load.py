"""When requests are sent, on virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headway.bench.load import Outcome, Run, run_load
from headway.workload import ClosedLoop, Constant, TrafficClass, Turns, Workload
from virtual_loop import run_virtually


def kind(name: str, count: int, arrivals: object) -> TrafficClass:
    return TrafficClass(name=name, num_prompts=count, input_len=1, output_len=1, arrivals=arrivals)


def run(workload: Workload, service_s: float, **options: int) -> Run:
    async def send(outcome: Outcome) -> None:
        outcome.sent_s = asyncio.get_running_loop().time()
        await asyncio.sleep(service_s)
        outcome.chunk_times_s = [asyncio.get_running_loop().time()]

    return run_virtually(run_load(workload, workload.items(), send, **options))


def test_an_open_load_sends_at_its_times_whatever_the_server_does() -> None:
    result = run(Workload(classes=(kind("a", 4, Constant(1.0)),)), service_s=10.0)
    assert [each.sent_s for each in result.outcomes] == pytest.approx([0, 1, 2, 3])
    assert [each.due_s for each in result.outcomes] == pytest.approx([0, 1, 2, 3])
    assert result.duration_s == pytest.approx(13)


def test_users_of_a_closed_loop_ask_again_when_they_are_answered() -> None:
    loop = kind("loop", 5, ClosedLoop(2))
    beside = kind("beside", 2, Constant(0.5))
    result = run(Workload(classes=(loop, beside)), service_s=1.0)
    sent = {name: [] for name in ("loop", "beside")}
    for each in result.outcomes:
        sent[each.item.class_name].append(each.sent_s)
    assert sent["loop"] == pytest.approx([0, 0, 1, 1, 2])
    assert sent["beside"] == pytest.approx([0, 0.5])


def test_a_request_held_back_is_due_when_a_place_comes_free() -> None:
    result = run(Workload(classes=(kind("a", 3, Constant(0.25)),)), 1.0, max_concurrency=1)
    assert [each.arrival_s for each in result.outcomes] == pytest.approx([0, 0.25, 0.5])
    assert [each.due_s for each in result.outcomes] == pytest.approx([0, 1, 2])
    assert [each.sent_s for each in result.outcomes] == pytest.approx([0, 1, 2])


def conversations(count: int, arrivals: object, turns: int) -> Workload:
    talk = Turns(count=turns, input_len=1, pause_s=0.5)
    return Workload(classes=(msgspec.structs.replace(kind("a", count, arrivals), turns=talk),))


def by_conversation(result: Run) -> list[list[Outcome]]:
    found: dict[int, list[Outcome]] = {}
    for each in result.outcomes:
        root = each
        while root.before is not None:
            root = root.before
        found.setdefault(id(root), []).append(each)
    return list(found.values())


def test_a_turn_is_sent_its_pause_after_the_answer_that_it_follows() -> None:
    result = run(conversations(2, Constant(1.0), turns=3), service_s=2.0)
    sent = [[each.sent_s for each in turns] for turns in by_conversation(result)]
    assert sent == [pytest.approx([0, 2.5, 5]), pytest.approx([1, 3.5, 6])]
    for each in result.outcomes:
        assert each.due_s == pytest.approx(each.sent_s)
        assert each.arrival_s == pytest.approx(each.sent_s)
    assert result.duration_s == pytest.approx(8)


def test_a_user_of_a_closed_loop_ends_his_conversation_before_the_next() -> None:
    result = run(conversations(2, ClosedLoop(1), turns=2), service_s=1.0)
    sent = [[each.sent_s for each in turns] for turns in by_conversation(result)]
    assert sent == [pytest.approx([0, 1.5]), pytest.approx([2.5, 4])]
    assert [each.due_s for each in result.outcomes] == pytest.approx(
        [each.sent_s for each in result.outcomes]
    )


def test_a_limit_of_requests_holds_nobody_back_who_pauses() -> None:
    result = run(conversations(2, Constant(0.0001), turns=2), 1.0, max_concurrency=1)
    assert sorted(each.sent_s for each in result.outcomes) == pytest.approx([0, 1, 2, 3], abs=0.01)
    second = by_conversation(result)[0][1]
    assert (second.arrival_s, second.due_s) == pytest.approx((1.5, 2), abs=0.01)


def test_the_rest_of_a_conversation_fails_with_a_turn() -> None:
    workload = conversations(2, Constant(1.0), turns=3)
    ended = []

    async def send(outcome: Outcome) -> None:
        outcome.sent_s = asyncio.get_running_loop().time()
        if outcome.arrival_s == 0.5:
            outcome.error = "gone"

    result = run_virtually(
        run_load(workload, workload.items(), send, progress=lambda: ended.append(1))
    )
    errors = [[each.error for each in turns] for turns in by_conversation(result)]
    assert errors == [[None, "gone", "not sent: a turn before it failed"], [None] * 3]
    assert len(ended) == 6
    lost = by_conversation(result)[0][2]
    assert lost.sent_s == lost.due_s == pytest.approx(0.5)
    assert [each.unsent for each in by_conversation(result)[0]] == [False, False, True]


def test_both_limits_hold() -> None:
    loop = kind("loop", 4, ClosedLoop(3))
    result = run(Workload(classes=(loop,)), 1.0, max_concurrency=2)
    assert [each.sent_s for each in result.outcomes] == pytest.approx([0, 0, 1, 1])


def test_a_late_client_is_known_by_due_and_sent() -> None:
    async def work() -> Run:
        workload = Workload(classes=(kind("a", 2, Constant(1.0)),))

        async def send(outcome: Outcome) -> None:
            loop = asyncio.get_running_loop()
            loop._virtual.now += 1.5  # type: ignore[attr-defined]  # it is busy elsewhere
            outcome.sent_s = loop.time()

        return await run_load(workload, workload.items(), send)

    first, second = run_virtually(work()).outcomes
    assert (first.due_s, first.sent_s) == pytest.approx((0, 1.5))
    assert (second.due_s, second.sent_s) == pytest.approx((1, 3.0))
