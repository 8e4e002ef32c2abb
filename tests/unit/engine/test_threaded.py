"""An executor in a thread of its own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headway.core.plan import StepPlan, StepResult
from headway.engine.threaded import ThreadedExecutor
from waiting import IN_TIME_S


def plan(step: int) -> StepPlan:
    return StepPlan(step, ())


class Probe:
    """Notes what it runs and in which thread; waits where it is told to."""

    def __init__(self) -> None:
        self.threads = {threading.current_thread()}
        self.ran: list[int] = []
        self.fail_at: dict[int, BaseException] = {}
        self.began, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def submit(self, plan: StepPlan) -> StepPlan:
        self.threads.add(threading.current_thread())
        self.began.set()
        self.may_end.wait()
        self.ran.append(plan.step)
        if plan.step in self.fail_at:
            raise self.fail_at[plan.step]
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        self.threads.add(threading.current_thread())
        return StepResult(handle.step, ())

    def block_copy_s(self) -> float:
        self.threads.add(threading.current_thread())
        return 0.25


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(IN_TIME_S)
        assert not thread.is_alive()


@pytest.fixture
def probe() -> Iterator[Any]:
    yield (probe := Probe())
    probe.may_end.set()


def test_all_of_an_executors_work_is_done_in_one_other_thread() -> None:
    executor = ThreadedExecutor(Probe)
    probe: Any = executor.inner
    assert executor.block_copy_s() == 0.25
    handles = [executor.submit(plan(step)) for step in range(3)]
    assert [executor.collect(handle).step for handle in handles] == [0, 1, 2]
    assert len(probe.threads) == 1
    assert threading.current_thread() not in probe.threads
    executor.close()


def test_submit_returns_while_the_step_runs(probe: Any) -> None:
    executor = ThreadedExecutor(lambda: probe)
    probe.may_end.clear()
    handles = [executor.submit(plan(step)) for step in (1, 2)]
    assert probe.began.wait(IN_TIME_S)
    assert not probe.ran
    probe.may_end.set()
    assert [executor.collect(handle).step for handle in handles] == [1, 2]
    executor.close()


def test_a_failure_voids_what_was_submitted_after_it_and_nothing_later(probe: Any) -> None:
    executor = ThreadedExecutor(lambda: probe)
    probe.fail_at = {1: ValueError("bad")}
    probe.may_end.clear()
    failed, void = executor.submit(plan(1)), executor.submit(plan(2))
    probe.may_end.set()
    with pytest.raises(ValueError, match="bad"):
        executor.collect(failed)
    assert executor.collect(executor.submit(plan(3))).step == 3
    with pytest.raises(RuntimeError, match="step 2 is void"):
        void.result()
    assert probe.ran == [1, 3]
    executor.close()


def test_what_is_submitted_before_a_failure_is_collected_is_void_too(probe: Any) -> None:
    executor = ThreadedExecutor(lambda: probe)
    probe.fail_at = {1: ValueError("bad")}
    failed = executor.submit(plan(1))
    failed.exception()  # it has run
    executor.submit(plan(2))
    with pytest.raises(ValueError, match="bad"):
        executor.collect(failed)
    executor.close()
    assert probe.ran == [1]


def test_an_interrupt_while_waiting_voids_what_has_not_begun(
    probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = ThreadedExecutor(lambda: probe)
    probe.may_end.clear()
    running, void = executor.submit(plan(1)), executor.submit(plan(2))
    assert probe.began.wait(IN_TIME_S)

    def interrupted() -> StepResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "result", interrupted)  # as Ctrl-C does to a wait
    with pytest.raises(KeyboardInterrupt):
        executor.collect(running)
    later = executor.submit(plan(3))
    probe.may_end.set()
    assert executor.collect(later).step == 3
    assert isinstance(void.exception(), RuntimeError)
    assert probe.ran == [1, 3]
    executor.close()


def test_two_executors_can_share_a_thread() -> None:
    first = ThreadedExecutor(Probe)
    second = ThreadedExecutor(Probe, beside=first)
    for executor in (first, second):
        assert executor.collect(executor.submit(plan(1))).step == 1
    probes: list[Any] = [first.inner, second.inner]
    assert probes[0].threads == probes[1].threads
    second.close()
    assert first.collect(first.submit(plan(2))).step == 2
    first.close()


def test_what_making_the_executor_raises_is_raised_and_leaves_no_thread() -> None:
    def make() -> Probe:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        ThreadedExecutor(make)


def test_an_executor_that_is_dropped_unclosed_leaves_no_thread() -> None:
    executor = ThreadedExecutor(Probe)
    executor.submit(plan(1))
    del executor
