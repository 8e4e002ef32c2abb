from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from engines import SMALL, TestEngine
from headway.clock import VirtualClock
from headway.core.params import SamplingParams
from headway.core.plan import Chunk, Sample
from headway.metrics import Admission, EngineState, RequestRecord, StepRecord
from headway.server.watch.stats import StatsObserver, StepStats
from headway.sim.executor import SimulatedExecutor

STATE = EngineState(num_running=3, num_waiting=0, blocks_used=6, blocks_cached=3, blocks_free=1)
SAMPLE = Sample(SamplingParams(), 0, 0)
STEP = StepRecord(
    step=1,
    time_s=3.0,
    duration_s=0.02,
    chunks=(Chunk("a", 16, (1,) * 5, (0, 1)), Chunk("b", 32, (1,), (2, 3, 4), SAMPLE)),
    num_tokens=6,
    num_prompt_tokens=5,
    num_output_tokens=1,
    admissions={"a": Admission("first", 21, 16), "b": Admission("again", 33, 32)},
    budget=256,
    num_running=3,
    waiting={},
    blocks_used=6,
    blocks_cached=3,
    blocks_free=1,
    evictions=4,
    preemptions={"memory": 1, "priority": 2},
    recomputed_tokens=7,
    discarded_tokens=9,
    swapped_out_blocks=5,
    swapped_in_blocks=3,
)
ENDED = RequestRecord(
    request_id="b",
    arrival_s=1.0,
    first_scheduled_s=1.5,
    first_token_s=2.0,
    finished_s=4.0,
    num_prompt_tokens=30,
    num_output_tokens=11,
    max_tokens=40,
    num_cached_tokens=16,
    num_preemptions=0,
    priority=0,
    finish_reason="stop",
    tenant="alice",
)


class Observed:
    """What an observer sends; `state` and `now_s` are the engine's."""

    def __init__(self) -> None:
        self.sent: list[StepStats] = []
        self.state = STATE
        self.now_s = 10.0
        self.observer = StatsObserver(lambda: self.state, lambda: self.now_s, self.sent.append)

    def step(self, record: StepRecord | None, *ended: RequestRecord, at: float = 10.0) -> StepStats:
        self.now_s = at
        self.observer(record, ended)
        return self.sent[-1]

    def gaps(self, record: StepRecord, *ended: RequestRecord, at: float) -> dict[float, int]:
        work = self.step(record, *ended, at=at).work
        assert work is not None
        return {round(gap, 9): count for gap, count in work.gaps}


def decodes(*names: str, step: int = 2) -> StepRecord:
    chunks = tuple(Chunk(name, 40, (1,), (5, 6, 7), SAMPLE) for name in names)
    return replace(STEP, step=step, chunks=chunks, admissions={}, waiting={})


def test_a_message_is_small_and_comes_through_as_it_was() -> None:
    stats = Observed().step(STEP, ENDED)
    data = msgspec.msgpack.encode(stats)
    assert msgspec.msgpack.decode(data, type=StepStats) == stats
    many = replace(STEP, chunks=tuple(Chunk(str(i), 40, (1,), (5,), SAMPLE) for i in range(100)))
    assert len(msgspec.msgpack.encode(Observed().step(many))) < 120


def test_lookups_are_apart_by_kind_and_the_rate_is_of_first_admissions() -> None:
    stats = Observed().step(STEP)
    assert stats.work is not None
    assert (stats.work.first, stats.work.again) == ((21, 16), (33, 32))
    assert stats.hit_rate == 16 / 21


def test_the_state_is_that_after_the_step_and_not_its_plan() -> None:
    observed = Observed()
    observed.state = EngineState(0, 0, 0, 9, 1)
    assert observed.step(STEP, ENDED).state == EngineState(0, 0, 0, 9, 1)
    assert observed.step(None, ENDED).work is None


def test_who_waits_does_so_for_the_plans_reason_or_is_new() -> None:
    observed = Observed()
    assert observed.step(replace(STEP, waiting={"blocks": 2})).waiting_for == ""
    observed.state = STATE._replace(num_waiting=2)
    assert observed.step(replace(STEP, waiting={"blocks": 2})).waiting_for == "blocks"
    assert observed.step(STEP).waiting_for == "new"
    assert observed.step(None).waiting_for == "new"


def test_gaps_between_tokens_are_of_each_request_from_its_second_token_on() -> None:
    observed = Observed()
    assert observed.gaps(decodes("a", "b"), at=10.0) == {}
    assert observed.gaps(decodes("a", "b"), at=10.5) == {0.5: 2}
    assert observed.gaps(decodes("a"), at=10.75) == {0.25: 1}
    assert observed.gaps(decodes("a", "b", "c"), at=11.0) == {0.25: 1, 0.5: 1}
    assert observed.gaps(replace(decodes("a"), failed=True), at=12.0) == {}


def test_a_request_that_ended_leaves_nothing_behind_though_a_plan_in_flight_has_it() -> None:
    observed = Observed()
    observed.gaps(decodes("a", "b"), at=10.0)
    observed.gaps(decodes("a", "b"), ENDED, at=10.5)  # b has ended, and the next plan was made
    assert observed.gaps(decodes("a", "b"), at=11.0) == {0.5: 1}
    assert observed.gaps(decodes("a"), at=11.5) == {0.5: 1}
    assert set(observed.observer._last_token_s) == {"a"}


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_tokens_add_up_to_what_the_requests_had_and_nothing_is_held_in_the_end(
    async_scheduling: bool,
) -> None:
    engine = busy_engine(async_scheduling)
    sent: list[StepStats] = []
    observer = StatsObserver(lambda: engine.core.state, engine.clock.now, sent.append)
    engine.core.add_observer(observer)
    for index in range(12):
        prompt = [(index * place) % 26 for place in range(17)]
        engine.add(f"r{index}", prompt, max_tokens=14)
    engine.run()
    work = [stats.work for stats in sent if stats.work is not None]
    assert sum(sum(each.preemptions.values()) for each in work), "else it shows little"
    computed = sum(each.num_prompt_tokens + each.first[1] for each in work)
    assert computed == sum(record.num_prompt_tokens for record in engine.ended.values())
    num_output = sum(record.num_output_tokens for record in engine.ended.values())
    assert sum(each.num_output_tokens for each in work) == num_output
    assert sum(count for each in work for _, count in each.gaps) == num_output - 12
    assert [record.request_id for stats in sent for record in stats.ended] == list(engine.ended)
    state = sent[-1].state
    assert (state.num_running, state.num_waiting, state.blocks_used) == (0, 0, 0)
    assert state.blocks_cached, "what the cache still has shows when all is done"
    assert not observer._last_token_s


def busy_engine(async_scheduling: bool) -> TestEngine:
    clock = VirtualClock()
    executor = SimulatedExecutor(
        clock=clock, num_blocks=SMALL.num_kv_blocks, block_size=SMALL.block_size, vocab_size=26
    )
    return TestEngine(executor, clock=clock, async_scheduling=async_scheduling)
