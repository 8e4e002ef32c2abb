"""A request's tokens are those it gets alone, whatever the scheduler does to it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from golden.conftest import Oracle
from headway.clock import MonotonicClock
from headway.config import EngineArgs
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.plan import StepPlan, TokenLogprobs
from headway.core.policy import FCFSPolicy
from headway.core.preemption import Mode
from headway.core.scheduler import Scheduler
from headway.engine.core import EngineCore
from headway.engine.outputs import NewRequest, OutputProcessor
from headway.llm import build_engine
from headway.metrics import Costs, RequestRecord, StepRecord
from tiny import TINY, tiny_weights
from tiny_executors import one_thread, pytorch, reference

NUM_REQUESTS = 64
MAX_SEQS = 64
EXECUTORS = {"reference": reference, "torch": pytorch}
NUM_SWAP_BLOCKS = 60
COSTS = Costs(prefill_token_s=1.0, block_copy_s=1.5)
"""With blocks of 4 tokens: a few tokens, or those of a shared prefix, are better recomputed."""


class Watch:
    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.ended: list[RequestRecord] = []

    def __call__(self, step: StepRecord | None, ended: tuple[RequestRecord, ...]) -> None:
        self.steps += [step] if step else []
        self.ended += ended


@dataclass
class Output:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


def run(core: EngineCore, requests: list[NewRequest], seed: int | None) -> list[Output]:
    """What each request came to; with a seed, the chunks are of random size."""
    rng = random.Random(seed)
    core.add(requests)
    outputs = {request.request_id: Output() for request in requests}
    while core.has_work:
        if seed is not None:
            core._scheduler._budget = rng.randint(MAX_SEQS, 3 * MAX_SEQS)
        for delta in core.step():
            assert delta.error is None
            output = outputs[delta.request_id]
            output.tokens += delta.token_ids
            output.logprobs += delta.logprobs
            output.prompt_logprobs += delta.prompt_logprobs
    return list(outputs.values())


def greedy(prompts: list[list[int]], num_tokens: int) -> list[NewRequest]:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    return [NewRequest(str(i), prompt, params) for i, prompt in enumerate(prompts)]


def sampled(prompts: list[list[int]], num_tokens: int) -> list[NewRequest]:
    """Every way of sampling, two or three of them together in a request."""
    ways: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "top_k": 9},
        {"top_p": 0.8, "logprobs": 2},
        {"min_p": 0.1, "presence_penalty": 1.5},
        {"frequency_penalty": 0.8, "top_p": 0.9},
        {"repetition_penalty": 1.4, "logprobs": 0},
        {"logit_bias": {3: 4.0, 5: -100.0}, "temperature": 2.0},
        {"allowed_token_ids": [1, 4, 9, 16, 25, 36], "prompt_logprobs": 1},
        {"bad_words": ["a", "bc"], "frequency_penalty": -1.0},
        {"temperature": 0.0, "repetition_penalty": 1.2, "prompt_logprobs": 0, "logprobs": 1},
        {"stop_token_ids": [3, 4, 5], "min_tokens": 6},
    ]
    return [
        NewRequest(
            str(i),
            prompt,
            SamplingParams(max_tokens=num_tokens, seed=i % 5, **ways[i % len(ways)]),
            index=i % 3,
        )
        for i, prompt in enumerate(prompts)
    ]


def alone(core: EngineCore, requests: list[NewRequest]) -> list[Output]:
    return [run(core, [request], seed=None)[0] for request in requests]


def shared_prefix_prompts(vocab_size: int, shortest: int, longest: int) -> list[list[int]]:
    rng = random.Random(5)
    prefixes = [[rng.randrange(vocab_size) for _ in range(longest)] for _ in range(6)]
    return [
        rng.choice(prefixes)[: rng.randint(shortest, longest)]
        + [rng.randrange(vocab_size) for _ in range(rng.randint(1, 8))]
        for _ in range(NUM_REQUESTS)
    ]


def check_crowd(watch: Watch, core: EngineCore) -> None:
    assert sum(record.num_preemptions for record in watch.ended) >= 24
    assert any(
        entry.hit_tokens and entry.admission == "first" for s in watch.steps for entry in s.batch
    )
    sizes = {entry.num_tokens for step in watch.steps for entry in step.batch}
    assert len(sizes) > 10
    assert core._scheduler._kv.num_used == 0


def check_swaps(watch: Watch, mode: Mode) -> None:
    """Some were swapped, unless all are to be recomputed; with `auto`, some of both."""
    num_swapped = sum(step.swapped_out_blocks for step in watch.steps)
    assert (num_swapped > 40) == (mode != "recompute")
    assert sum(step.swapped_in_blocks for step in watch.steps) <= num_swapped
    if mode != "recompute":
        assert any(step.swapped_in_blocks for step in watch.steps)
    if mode != "swap":
        assert any(step.recomputed_tokens for step in watch.steps)


def test_the_default_model_in_float32(
    model_path: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = build_engine(
        EngineArgs(
            model=str(model_path),
            dtype="float32",
            num_kv_blocks=30,
            max_num_seqs=MAX_SEQS,
            debug_invariants=True,
        )
    )
    prompts = shared_prefix_prompts(engine.model.spec.vocab_size, 4, 40)
    watch = Watch()
    engine.core.add_observer(watch)
    requests = greedy(prompts, 20)
    crowd = run(engine.core, requests, seed=1)
    check_crowd(watch, engine.core)
    # What each would get alone, in one pass of the oracle: every token is the likeliest one after
    # those before it. (`test_transformers` compares the engine itself, requests alone.)
    differing = 0
    for prompt, output in zip(prompts, crowd, strict=True):
        assert len(output.tokens) == 20
        at = oracle.first_difference(prompt, output.tokens)
        if at is not None:
            differing += 1
            before = prompt + output.tokens[:at]
            best = int(oracle.logits(before).argmax())
            assert oracle.is_near_tie(before, output.tokens[at], best)
    with capsys.disabled():
        print(f"\n{differing} of {NUM_REQUESTS} requests differ, each first at a near tie")


class PricedScheduler(Scheduler):
    """Given costs that do not depend on the machine, so that `auto` decides the same each time."""

    def schedule(self, now: float, costs: Costs | None = None, *drafts: Any) -> StepPlan:
        return super().schedule(now, COSTS, *drafts)


def tiny_core(
    num_blocks: int, *, caching: bool, mode: Mode = "recompute", executor: str = "reference"
) -> EngineCore:
    class Nothing:
        def token_bytes(self, token_id: int) -> bytes:
            return b""

        def is_special(self, token_id: int) -> bool:
            return False

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [ord(character) % TINY.vocab_size for character in text]

    return EngineCore(
        scheduler=PricedScheduler(
            kv=KVCacheManager(num_blocks=num_blocks, block_size=4, enable_prefix_caching=caching),
            policy=FCFSPolicy(),
            door=Door(max_model_len=num_blocks * 4, vocab_size=TINY.vocab_size),
            max_num_batched_tokens=MAX_SEQS,
            max_num_seqs=MAX_SEQS,
            preemption_mode=mode,
            num_swap_slots=NUM_SWAP_BLOCKS,
        ),
        executor=EXECUTORS[executor](
            TINY,
            tiny_weights(),
            num_blocks=num_blocks,
            block_size=4,
            num_swap_blocks=NUM_SWAP_BLOCKS,
        ),
        outputs=OutputProcessor(Nothing()),  # type: ignore[arg-type]
        clock=MonotonicClock(),
        eos_token_ids=(),
        seeds=random.Random(0),
        debug_invariants=True,
    )


Way = Callable[[list[list[int]], int], list[NewRequest]]


@functools.cache
def tiny_requests(way: Way) -> tuple[list[NewRequest], list[Output]]:
    """Requests, and what each comes to by itself on the reference executor."""
    requests = way(shared_prefix_prompts(TINY.vocab_size, 3, 30), 24)
    return requests, alone(tiny_core(24, caching=False), requests)


@pytest.mark.parametrize(
    ("executor", "way", "mode"),
    [
        *(("reference", way, mode) for way in (greedy, sampled) for mode in get_args(Mode)),
        ("torch", sampled, "swap"),
    ],
)
def test_a_tiny_model_in_float32_without_any_exception(executor: str, way: Way, mode: Mode) -> None:
    requests, by_themselves = tiny_requests(way)
    core, watch = tiny_core(24, caching=True, mode=mode, executor=executor), Watch()
    core.add_observer(watch)
    with one_thread():
        crowd = run(core, requests, seed=2)
    check_crowd(watch, core)
    check_swaps(watch, mode)
    assert [output.tokens for output in crowd] == [output.tokens for output in by_themselves]
    for request, one, other in zip(requests, by_themselves, crowd, strict=True):
        wanted = request.params.prompt_logprobs is not None
        assert len(one.prompt_logprobs) == wanted * (len(request.prompt_token_ids) - 1)
        assert len(one.logprobs) == len(one.tokens) * (request.params.logprobs is not None)
        for name in ("logprobs", "prompt_logprobs"):
            pairs = zip(getattr(one, name), getattr(other, name), strict=True)
            assert all(close(row, same) for row, same in pairs)


def close(one: TokenLogprobs, other: TokenLogprobs) -> bool:
    """The same but for the last bits, which a matrix product of other row counts may change."""
    return (
        (one.token_id, one.rank, len(one.top)) == (other.token_id, other.rank, len(other.top))
        and one.logprob == pytest.approx(other.logprob, abs=1e-4)
        and [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-4)
    )


def test_another_seed_or_index_is_another_output() -> None:
    """So that equal outputs above are not equal for want of chance."""
    core = tiny_core(24, caching=True)
    outputs = [
        run(core, [NewRequest("r", [1, 2, 3], SamplingParams(seed=seed), index=index)], None)
        for seed, index in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    first, same, other_index, other_seed = ([o.tokens for o in output] for output in outputs)
    assert first == same
    assert first != other_index
    assert first != other_seed
