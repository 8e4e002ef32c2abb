"""When requests are sent, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headway.bench.load import Outcome, Run, run_load
from headway.workload import ClosedLoop, Constant, TrafficClass, Workload
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
