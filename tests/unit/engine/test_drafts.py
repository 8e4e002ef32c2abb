"""Engines that speculate: what they put out is what they put out without (rule S14)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines import SMALL, TestEngine
from headway.clock import VirtualClock
from headway.core.request import Request
from headway.engine.draft_model import DraftModelProposer
from headway.engine.ngram import NgramProposer
from headway.engine.speculation import Proposer, Speculator
from headway.engine.threaded import ThreadedExecutor
from headway.record.compare import run_replay
from headway.record.recorder import Recorder, RecordingFile
from headway.runtime.reference import ReferenceExecutor
from headway.sim.executor import LinearCost, SimulatedExecutor, expected_tokens
from tiny import TINY, tiny_weights
from unit.engine.test_overlap import mixed, text

BLOCKS = {"num_blocks": SMALL.num_kv_blocks, "block_size": SMALL.block_size}
VOCAB = 26


class Oracle:
    """Knows what the simulated model says to a prompt; errs after `num_right` tokens."""

    def __init__(self, num_right: Callable[[], int]) -> None:
        self.num_right = num_right

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        drafts = {}
        for request, count in wanted:
            tokens = expected_tokens(request.token_ids, count, VOCAB)
            right = self.num_right()
            wrong = [(token + 1) % VOCAB for token in tokens[right:]]
            drafts[request.request_id] = (*tokens[:right], *wrong)
        return drafts


def simulated(clock: VirtualClock, proposer: Proposer, **options: Any) -> TestEngine:
    executor = SimulatedExecutor(
        clock=clock, vocab_size=VOCAB, cost=LinearCost(1.0, 0.01), verify=True, **BLOCKS
    )
    speculator = Speculator(proposer, num_tokens=4, clock=clock)
    return TestEngine(executor, clock=clock, speculator=speculator, **options)


def accepted(engine: TestEngine) -> tuple[int, int]:
    """Drafts that were accepted, and all."""
    return (
        sum(step.num_accepted_tokens for step in engine.steps),
        sum(step.num_draft_tokens for step in engine.steps),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("overlap", [False, True])
def test_outputs_are_those_without_drafts_and_replay_too(
    tmp_path: Path, seed: int, overlap: bool
) -> None:
    draw = random.Random(seed)
    recorder = Recorder(RecordingFile(tmp_path / "recording", SMALL), block_size=4)
    engine = simulated(
        VirtualClock(),
        Oracle(lambda: draw.choice([0, 1, 2, 4, 4, 4])),
        async_scheduling=overlap,
        recorder=recorder,
    )
    for name, tokens in mixed(engine, seed).items():
        assert engine.tokens[name] == tokens, name
    engine.core.close()
    right, all_drafts = accepted(engine)
    assert all_drafts > right > 30
    assert run_replay([tmp_path / "recording"], out=StringIO()) == 0


def test_right_drafts_save_steps() -> None:
    engine = simulated(VirtualClock(), Oracle(lambda: 4))
    engine.add("a", [1, 2, 3], max_tokens=41)
    engine.run()
    assert engine.tokens["a"] == expected_tokens([1, 2, 3], 41, VOCAB)
    assert len(engine.steps) < 16


def test_a_stop_string_among_accepted_drafts_ends_the_output_there() -> None:
    expected = expected_tokens([1, 2, 3], 30, VOCAB)
    engine = simulated(VirtualClock(), Oracle(lambda: 4))
    stops = [text(expected[i : i + 2]) for i in range(8, 12)]
    for i, stop in enumerate(stops):
        engine.add(f"r{i}", [1, 2, 3], max_tokens=30, stop=[stop])
    engine.run()
    for i, stop in enumerate(stops):
        end = text(expected).index(stop)
        assert engine.texts[f"r{i}"] == text(expected)[:end]
        assert engine.tokens[f"r{i}"] == expected[: end + 2]
        assert engine.ended[f"r{i}"].finish_reason == "stop"
    assert accepted(engine)[0] > 10


def test_a_request_aborted_while_its_drafts_are_made_or_run_gives_nothing_more() -> None:
    oracle = Oracle(lambda: 4)
    engine = simulated(VirtualClock(), oracle)
    propose = oracle.propose

    def abort_meanwhile(wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        drafts = propose(wanted)
        engine.abort("a")
        return drafts

    engine.add("a", [1, 2, 3], max_tokens=20)
    engine.add("b", [3, 4], max_tokens=20)
    engine.step()
    oracle.propose = abort_meanwhile  # type: ignore[method-assign]
    engine.run()
    assert engine.reasons == {"a": "abort", "b": "length"}
    assert engine.tokens["b"] == expected_tokens([3, 4], 20, VOCAB)


def test_drafts_and_overlap_take_turns() -> None:
    """Where drafts pay nothing is in flight when a plan is made; else plans overlap."""
    in_flight = []
    for right in (4, 0):
        engine = simulated(VirtualClock(), Oracle(lambda right=right: right), async_scheduling=True)
        engine.executor._cost = LinearCost(0.001, 1.0)  # type: ignore[attr-defined]
        if right:
            engine.executor._cost = LinearCost(1.0, 0.001)  # type: ignore[attr-defined]
        engine.add("a", [1, 2, 3], max_tokens=50)
        while engine.core.has_work:
            engine.step()
            in_flight.append(len(engine.core._in_flight))
        assert engine.tokens["a"] == expected_tokens([1, 2, 3], 50, VOCAB)
    assert in_flight[5:10] == [0] * 5
    assert in_flight[-10:-2].count(1) >= 6


def model(seed: int = 0) -> ReferenceExecutor:
    return ReferenceExecutor(TINY, tiny_weights(seed=seed), num_blocks=60, block_size=4)


def drafting(executor: Any) -> DraftModelProposer:
    sizes = {"num_blocks": 60, "block_size": 4, "max_num_batched_tokens": 24}
    return DraftModelProposer(executor, max_position=TINY.max_position, **sizes)


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NgramProposer(min_ngram=1, max_ngram=3),
    "same model": lambda: drafting(model()),
    "another model": lambda: drafting(model(seed=7)),
}


LEAST = {"ngram": (2, 15), "same model": (60, 60), "another model": (1, 40)}
"""Drafts that are accepted, and all, so that a test is worth something."""


def with_a_model(proposer: Proposer | None, *, overlap: bool = False) -> TestEngine:
    clock = VirtualClock()  # it stands still: drafts cost nothing, so there are all there can be
    return TestEngine(
        ThreadedExecutor(model) if overlap else model(),
        msgspec.structs.replace(SMALL, num_kv_blocks=45, max_num_batched_tokens=32),
        vocab_size=TINY.vocab_size,
        clock=clock,
        async_scheduling=overlap,
        speculator=None if proposer is None else Speculator(proposer, num_tokens=4, clock=clock),
    )


def crowd(engine: TestEngine) -> dict[str, list[int]]:
    draw = random.Random(5)
    for count in range(10):
        tokens = [draw.randrange(TINY.vocab_size) for _ in range(draw.randint(1, 20))]
        engine.add(
            f"r{count}",
            tokens,
            max_tokens=24,
            temperature=draw.choice([0.0, 0.0, 0.4]),
            top_k=draw.choice([0, 5]),
            seed=count,
            presence_penalty=draw.choice([0.0, 0.0, 0.7]),
            logprobs=draw.choice([None, None, None, 0]),
            stop_token_ids=[draw.randrange(TINY.vocab_size)],
        )
        engine.step()
        if count == 6:
            engine.abort("r2")
            engine.texts["r2"] = ""
            engine.tokens["r2"] = []
    engine.run()
    return engine.tokens


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_those_without_greedy_and_sampled(name: str, overlap: bool) -> None:
    expected = crowd(with_a_model(None))
    engine = with_a_model(PROPOSERS[name](), overlap=overlap)
    assert crowd(engine) == expected
    right, all_drafts = accepted(engine)
    assert right >= LEAST[name][0]
    assert all_drafts >= LEAST[name][1]
    engine.core.close()


def test_of_the_same_model_nearly_all_drafts_are_accepted_sampled_ones_too() -> None:
    engine = with_a_model(PROPOSERS["same model"]())
    for count, temperature in enumerate((0.0, 1.0, 1.0)):
        engine.add(f"r{count}", [3, 1, count], max_tokens=30, temperature=temperature, seed=count)
    engine.run()
    right, all_drafts = accepted(engine)
    assert right >= 0.95 * all_drafts > 40
