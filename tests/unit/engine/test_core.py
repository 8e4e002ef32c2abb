"""The step loop over the simulated executor and a virtual clock."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pytest

from headway.clock import VirtualClock
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.plan import StepPlan, StepResult
from headway.core.policy import FCFSPolicy
from headway.core.scheduler import Scheduler
from headway.engine.core import EngineCore
from headway.engine.outputs import NewRequest, OutputDelta, OutputProcessor
from headway.errors import InvalidRequest
from headway.metrics import PrefixHitRate, RequestRecord, StepRecord
from headway.sim.executor import LinearCost, SimulatedExecutor, expected_tokens

VOCAB = 26


class Letters:
    def token_bytes(self, token_id: int) -> bytes:
        return chr(ord("a") + token_id).encode()

    def is_special(self, token_id: int) -> bool:
        return False


class Counting(Letters):
    """Counts how often it is asked."""

    num_encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += 1
        return [0]


class Flaky(SimulatedExecutor):
    """Raises in the steps whose numbers it is told."""

    fail_at: frozenset[int] = frozenset()
    error: BaseException = RuntimeError("out of luck")

    def submit(self, plan: StepPlan) -> tuple[StepResult, float]:
        if plan.step in self.fail_at:
            raise self.error
        return super().submit(plan)


@dataclass
class Bench:
    fail_at: frozenset[int] = frozenset()
    steps: list[StepRecord] = field(default_factory=list)
    ended: list[RequestRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.executor = Flaky(
            clock=self.clock,
            num_blocks=32,
            block_size=4,
            vocab_size=VOCAB,
            cost=LinearCost(1.0, 0.1),
        )
        self.executor.fail_at = self.fail_at
        self.core = EngineCore(
            scheduler=Scheduler(
                kv=KVCacheManager(num_blocks=32, block_size=4),
                policy=FCFSPolicy(),
                door=Door(max_model_len=64, vocab_size=VOCAB),
                max_num_batched_tokens=16,
                max_num_seqs=4,
            ),
            executor=self.executor,
            outputs=OutputProcessor(Letters()),  # type: ignore[arg-type]
            clock=self.clock,
            eos_token_ids=(),
            seeds=random.Random(0),
            debug_invariants=True,
        )
        self.core.add_observer(self.observe)

    def observe(self, step: StepRecord | None, ended: tuple[RequestRecord, ...]) -> None:
        self.steps += [step] if step else []
        self.ended += ended

    def add(self, name: str, prompt: list[int], **params: object) -> None:
        options = {"max_tokens": 5, **params}
        self.core.add([NewRequest(name, prompt, SamplingParams(**options))])  # type: ignore[arg-type]

    def run(self) -> dict[str, list[OutputDelta]]:
        deltas: dict[str, list[OutputDelta]] = {}
        while self.core.has_work:
            for delta in self.core.step():
                deltas.setdefault(delta.request_id, []).append(delta)
        return deltas


def text(deltas: list[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def expected(prompt: list[int], length: int) -> str:
    return "".join(chr(ord("a") + token) for token in expected_tokens(prompt, length, VOCAB))


def test_text_and_records_come_out_of_one_run() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3])
    bench.add("b", [4, 5], max_tokens=2)
    deltas = bench.run()
    assert text(deltas["a"]) == expected([1, 2, 3], 5)
    assert text(deltas["b"]) == expected([4, 5], 2)
    assert [record.num_tokens for record in bench.steps] == [5, 2, 1, 1, 1]
    assert bench.steps[0].duration_s == pytest.approx(1.5)
    a = next(record for record in bench.ended if record.request_id == "a")
    assert a.first_token_s == pytest.approx(1.5)
    assert a.finished_s == pytest.approx(1.5 + 1.2 + 3 * 1.1)
    assert (a.num_prompt_tokens, a.num_output_tokens, a.finish_reason) == (3, 5, "length")


def test_a_stop_string_ends_the_request_before_the_next_plan() -> None:
    bench = Bench()
    stop = expected([1, 2, 3], 5)[1:3]
    bench.add("a", [1, 2, 3], stop=[stop])
    deltas = bench.run()
    assert text(deltas["a"]) == expected([1, 2, 3], 1)
    assert len(bench.steps) == 3
    assert bench.ended[0].finish_reason == "stop"


def test_a_stop_string_at_the_last_token_is_the_reason_in_the_record_too() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], stop=[expected([1, 2, 3], 5)[3:]])
    deltas = bench.run()
    assert deltas["a"][-1].finish_reason == "stop"
    assert [record.finish_reason for record in bench.ended] == ["stop"]


def test_an_abort_gives_a_last_delta_and_a_record() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3])
    bench.core.step()
    delta = bench.core.abort("a")
    assert delta is not None
    assert delta.finish_reason == "abort"
    assert bench.core.abort("a") is None
    assert bench.core.has_work
    assert bench.core.step() == []
    assert [record.finish_reason for record in bench.ended] == ["abort"]
    assert not bench.core.has_work


def test_an_abort_while_the_step_runs_drops_its_token() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3])
    bench.add("b", [1, 2, 4])
    original = bench.executor.collect

    def abort_meanwhile(handle: tuple[StepResult, float]) -> StepResult:
        bench.executor.collect = original  # type: ignore[method-assign]
        thread = threading.Thread(target=bench.core.abort, args=("a",))
        thread.start()
        thread.join()
        return original(handle)

    bench.executor.collect = abort_meanwhile  # type: ignore[method-assign]
    deltas = bench.run()
    assert "a" not in deltas
    assert text(deltas["b"]) == expected([1, 2, 4], 5)
    assert bench.steps[0].discarded_tokens == 3


def test_a_failed_step_costs_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(fail_at=frozenset({2}))
    bench.add("a", [1, 2, 3])
    bench.add("b", [4, 5])
    deltas = bench.run()
    assert text(deltas["a"]) == expected([1, 2, 3], 5)
    assert text(deltas["b"]) == expected([4, 5], 5)
    assert [record.failed for record in bench.steps][:3] == [False, True, False]
    assert "out of luck" in caplog.text


def test_an_interrupt_reaches_the_caller_and_the_engine_can_go_on() -> None:
    bench = Bench(fail_at=frozenset({2}))
    bench.executor.error = KeyboardInterrupt()
    bench.add("a", [1, 2, 3])
    bench.add("b", [4, 5])
    first = bench.core.step()
    with pytest.raises(KeyboardInterrupt):
        bench.core.step()
    bench.core.abort("b")
    bench.add("c", [6])
    deltas = bench.run()
    assert text([*first[:1], *deltas["a"]]) == expected([1, 2, 3], 5)
    assert text(deltas["c"]) == expected([6], 5)


def test_who_fails_alone_ends_with_the_error_and_the_others_go_on() -> None:
    bench = Bench(fail_at=frozenset({2, 3}))
    bench.add("a", [1, 2, 3])
    bench.add("b", [4, 5])
    deltas = bench.run()
    assert deltas["a"][-1].finish_reason == "error"
    assert "RuntimeError: out of luck" in str(deltas["a"][-1].error)
    assert text(deltas["b"]) == expected([4, 5], 5)


def test_a_bad_request_among_several_lets_none_in() -> None:
    bench = Bench()
    good, bad = (
        NewRequest("g", [1], SamplingParams()),
        NewRequest("b", [VOCAB], SamplingParams()),
    )
    with pytest.raises(InvalidRequest):
        bench.core.add([good, bad])
    assert not bench.core.has_work


def test_no_queries_are_told_from_no_hits_and_first_admissions_from_others() -> None:
    bench = Bench()
    rate = PrefixHitRate()
    bench.core.add_observer(lambda step, ended: rate.observe(step) if step else None)
    assert rate.first is None
    bench.add("a", [*range(10)])
    bench.run()
    assert rate.first == 0.0
    bench.add("b", [*range(10)])
    bench.run()
    assert rate.first == pytest.approx(8 / 20)
    assert rate.again is None


def test_bad_words_are_cut_into_tokens_once_for_all_requests_that_share_them() -> None:
    bench, tokenizer = Bench(), Counting()
    bench.core._outputs = OutputProcessor(tokenizer)  # type: ignore[arg-type]
    params = SamplingParams(bad_words=["a", "b"], max_tokens=1)
    bench.core.add([NewRequest(str(i), [1], params) for i in range(100)])
    assert tokenizer.num_encoded == 4  # each at the start of a text, and after a space
