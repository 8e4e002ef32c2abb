"""Two plans in flight (rule S11): the next plan is made while a step runs."""

from __future__ import annotations

import asyncio
import random
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from engines import SMALL, TestEngine
from headway.clock import VirtualClock
from headway.core.params import SamplingParams
from headway.core.plan import StepPlan, StepResult
from headway.engine.async_engine import AsyncEngine
from headway.engine.outputs import NewRequest
from headway.engine.threaded import ThreadedExecutor
from headway.metrics import StepRecord
from headway.record.compare import run_replay
from headway.record.recorder import Recorder, RecordingFile
from headway.runtime.reference import ReferenceExecutor
from headway.sim.executor import LinearCost, SimulatedExecutor, expected_tokens
from tiny import TINY, tiny_weights

BLOCKS = {"num_blocks": SMALL.num_kv_blocks, "block_size": SMALL.block_size}
VOCAB = 26


class Logged(SimulatedExecutor):
    """Notes the calls; raises at some steps, at submission or at collection."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        cost = LinearCost(1.0, 0.1)
        super().__init__(clock=clock, vocab_size=VOCAB, cost=cost, verify=True, **BLOCKS)
        self.calls: list[str] = []
        self.refuse: set[int] = set()
        self.fail: dict[int, BaseException] = {}

    def submit(self, plan: StepPlan) -> tuple[StepResult, float]:
        self.calls.append(f"submit {plan.step}")
        if plan.step in self.refuse:
            raise ValueError("cannot be submitted")
        return super().submit(plan)

    def collect(self, handle: tuple[StepResult, float]) -> StepResult:
        self.calls.append(f"collect {handle[0].step}")
        if (error := self.fail.pop(handle[0].step, None)) is not None:
            raise error
        return super().collect(handle)


def overlapped(**options: Any) -> TestEngine:
    clock = VirtualClock()
    return TestEngine(Logged(clock), clock=clock, async_scheduling=True, **options)


def prompt(start: int, length: int) -> list[int]:
    return [(start * 5 + position * 7) % VOCAB for position in range(length)]


def test_a_plan_is_submitted_before_the_one_before_is_collected() -> None:
    engine = overlapped()
    engine.add("a", prompt(1, 5), max_tokens=4)
    engine.run()
    assert engine.executor.calls == [  # type: ignore[attr-defined]
        *("submit 1", "submit 2", "collect 1", "submit 3", "collect 2", "submit 4", "collect 3"),
        "collect 4",
    ]
    assert engine.tokens["a"] == expected_tokens(prompt(1, 5), 4, VOCAB)


def test_nothing_can_be_planned_and_something_is_in_flight() -> None:
    engine = overlapped()
    engine.add("a", prompt(1, 5), max_tokens=1)
    engine.step()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 5), 1, VOCAB)
    assert not engine.core.has_work


def test_durations_of_steps_that_overlap_add_up_to_the_time_that_passed() -> None:
    engine = overlapped()
    engine.add("a", prompt(1, 20), max_tokens=6)
    engine.run()
    assert sum(step.duration_s for step in engine.steps) == pytest.approx(engine.clock.now())
    assert [step.duration_s for step in engine.steps] == pytest.approx([3.0] + [1.1] * 5)


def text(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def mixed(engine: TestEngine, seed: int) -> dict[str, list[int]]:
    """Random requests that come and go; what each is to put out, where nobody ended it."""
    draw = random.Random(seed)
    expected = {}
    for count in range(30):
        name, most = f"r{count}", draw.randint(1, 20)
        tokens = prompt(draw.randint(0, 4), draw.randint(1, 30))
        output = expected_tokens(tokens, most, VOCAB)
        ends: dict[str, Any] = {}
        choice = draw.random()
        if choice < 0.3:
            ends = {"stop_token_ids": [draw.choice(output)]}
            output = output[: output.index(ends["stop_token_ids"][0]) + 1]
        elif choice < 0.6 and most > 3:
            ends = {"stop": [text(output[2:4])]}
            output = output[: text(output).index(ends["stop"][0]) + 2]
        engine.add(name, tokens, max_tokens=most, **ends)
        expected[name] = output
        for _ in range(draw.randint(0, 3)):
            engine.step()
        if draw.random() < 0.2:
            gone = draw.choice(list(expected))
            engine.abort(gone)
            expected.pop(gone)
    engine.run()
    return expected


@pytest.mark.parametrize("seed", range(8))
def test_outputs_are_those_of_one_plan_at_a_time(seed: int) -> None:
    engine = overlapped()
    engine.executor.fail = {7: RuntimeError("out of luck"), 8: RuntimeError("again")}  # type: ignore[attr-defined]
    engine.executor.refuse = {15, 24}  # type: ignore[attr-defined]
    expected = mixed(engine, seed)
    assert len(expected) > 15
    for name, tokens in expected.items():
        if engine.reasons[name] != "error":  # who failed alone, at two steps running
            assert engine.tokens[name] == tokens, name
    assert sum(reason == "error" for reason in engine.reasons.values()) <= 2
    assert any(step.preemptions for step in engine.steps)


def test_a_plan_that_cannot_be_submitted_leaves_the_one_before_it_alone() -> None:
    engine = overlapped()
    engine.executor.refuse = {3}  # type: ignore[attr-defined]
    engine.add("a", prompt(1, 5), max_tokens=5)
    engine.add("b", prompt(2, 5), max_tokens=5)
    engine.run()
    assert [step.failed for step in engine.steps][:4] == [False, False, True, False]
    assert engine.tokens["a"] == expected_tokens(prompt(1, 5), 5, VOCAB)
    assert engine.tokens["b"] == expected_tokens(prompt(2, 5), 5, VOCAB)
    calls = engine.executor.calls  # type: ignore[attr-defined]
    assert calls.index("collect 2") == calls.index("submit 3") + 1


def test_a_failure_drops_both_plans_and_costs_nobody_an_answer() -> None:
    engine = overlapped()
    engine.executor.fail = {2: RuntimeError("out of luck")}  # type: ignore[attr-defined]
    engine.add("a", prompt(1, 5), max_tokens=5)
    engine.add("b", prompt(2, 5), max_tokens=5)
    engine.run()
    assert [step.step for step in engine.steps if step.failed] == [2, 3]
    assert engine.tokens["a"] == expected_tokens(prompt(1, 5), 5, VOCAB)
    assert engine.tokens["b"] == expected_tokens(prompt(2, 5), 5, VOCAB)


def test_an_interrupt_reaches_the_caller_and_the_engine_can_go_on() -> None:
    engine = overlapped()
    engine.executor.fail = {2: KeyboardInterrupt()}  # type: ignore[attr-defined]
    engine.add("a", prompt(1, 5), max_tokens=5)
    engine.add("b", prompt(2, 5), max_tokens=5)
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort("b")
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 5), 5, VOCAB)


def test_a_request_aborted_with_two_plans_in_flight_gives_nothing_more() -> None:
    engine = overlapped()
    engine.add("a", prompt(1, 5), max_tokens=9)
    engine.add("b", prompt(2, 5), max_tokens=9)
    engine.step()
    engine.abort("a")
    engine.run()
    assert engine.reasons == {"a": "abort", "b": "length"}
    assert engine.tokens["a"] == expected_tokens(prompt(1, 5), 1, VOCAB)
    assert engine.tokens["b"] == expected_tokens(prompt(2, 5), 9, VOCAB)
    assert engine.steps[1].discarded_tokens == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_recording_replays_to_the_same_plans(tmp_path: Path, seed: int) -> None:
    file = RecordingFile(tmp_path / "recording", SMALL)
    engine = overlapped(recorder=Recorder(file, block_size=4))
    engine.executor.fail = {7: RuntimeError("out of luck")}  # type: ignore[attr-defined]
    mixed(engine, seed)
    engine.core.close()
    assert run_replay([tmp_path / "recording"], out=StringIO()) == 0


def reference() -> ReferenceExecutor:
    return ReferenceExecutor(TINY, tiny_weights(), **BLOCKS)


def sampled(engine: TestEngine) -> dict[str, list[int]]:
    draw = random.Random(5)
    for count in range(12):
        tokens = [draw.randrange(TINY.vocab_size) for _ in range(draw.randint(1, 25))]
        engine.add(
            f"r{count}",
            tokens,
            max_tokens=20,
            temperature=draw.choice([0.0, 0.9]),
            seed=count,
            presence_penalty=draw.choice([0.0, 0.7]),
            stop_token_ids=[draw.randrange(TINY.vocab_size)],
        )
        engine.step()
    engine.run()
    return engine.tokens


def test_a_real_model_in_a_thread_gives_the_same_tokens_greedy_and_sampled() -> None:
    expected = sampled(TestEngine(reference(), vocab_size=TINY.vocab_size))
    executor = ThreadedExecutor(reference)
    engine = TestEngine(executor, vocab_size=TINY.vocab_size, async_scheduling=True)
    assert sampled(engine) == expected
    assert any(step.preemptions for step in engine.steps)
    engine.core.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(StepPlan(1, ()))


def test_streams_of_an_event_loop_come_whole_and_stopping_leaves_no_thread() -> None:
    threads = set(threading.enumerate())
    core = TestEngine(
        ThreadedExecutor(reference), vocab_size=TINY.vocab_size, async_scheduling=True
    ).core

    async def answers() -> list[list[int]]:
        engine = AsyncEngine(core)
        engine.start()
        params = SamplingParams(temperature=0.0, max_tokens=10)
        new = [NewRequest(f"r{count}", [count, 3], params) for count in range(6)]
        streams = await engine.add(new)
        streams[5].abort()
        tokens = [[token async for delta in s for token in delta.token_ids] for s in streams]
        engine.stop()
        return tokens

    got = asyncio.run(answers())
    core.close()
    assert [len(tokens) for tokens in got[:5]] == [10] * 5
    engine = TestEngine(reference(), vocab_size=TINY.vocab_size)
    for count in range(5):
        engine.add(f"r{count}", [count, 3], max_tokens=10)
    engine.run()
    assert got[:5] == list(engine.tokens.values())
    assert set(threading.enumerate()) <= threads


def test_records_are_in_the_order_of_the_plans() -> None:
    engine = overlapped()
    mixed(engine, 1)
    numbers = [step.step for step in engine.steps if isinstance(step, StepRecord)]
    assert numbers == sorted(numbers)
