"""A request's tokens are those it gets alone, whatever the scheduler does to it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from golden.conftest import Oracle
from headway.clock import MonotonicClock
from headway.config import EngineArgs
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.policy import FCFSPolicy
from headway.core.scheduler import Scheduler
from headway.engine.core import EngineCore
from headway.engine.outputs import NewRequest, OutputProcessor
from headway.llm import build_engine
from headway.metrics import RequestRecord, StepRecord
from headway.runtime.reference import ReferenceExecutor
from tiny import TINY, tiny_weights

NUM_REQUESTS = 64
MAX_SEQS = 64


class Watch:
    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.ended: list[RequestRecord] = []

    def __call__(self, step: StepRecord | None, ended: tuple[RequestRecord, ...]) -> None:
        self.steps += [step] if step else []
        self.ended += ended


def run(
    core: EngineCore, prompts: list[list[int]], num_tokens: int, seed: int | None
) -> list[list[int]]:
    """Output tokens; with a seed, the chunks are of random size."""
    rng = random.Random(seed)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    core.add([NewRequest(str(i), prompt, params) for i, prompt in enumerate(prompts)])
    outputs: list[list[int]] = [[] for _ in prompts]
    while core.has_work:
        if seed is not None:
            core._scheduler._budget = rng.randint(MAX_SEQS, 3 * MAX_SEQS)
        for delta in core.step():
            assert delta.error is None
            outputs[int(delta.request_id)] += delta.token_ids
    return outputs


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
    crowd = run(engine.core, prompts, 20, seed=1)
    check_crowd(watch, engine.core)
    alone_engine = build_engine(
        EngineArgs(
            model=str(model_path), dtype="float32", num_kv_blocks=30, enable_prefix_caching=False
        )
    )
    alone = [run(alone_engine.core, [prompt], 20, seed=None)[0] for prompt in prompts]
    differing = 0
    for prompt, one, other in zip(prompts, alone, crowd, strict=True):
        pairs = enumerate(zip(one, other, strict=True))
        at = next((i for i, pair in pairs if pair[0] != pair[1]), None)
        if at is not None:
            differing += 1
            assert oracle.is_near_tie(prompt + one[:at], one[at], other[at])
    with capsys.disabled():
        print(f"\n{differing} of {NUM_REQUESTS} requests differ, each first at a near tie")


def tiny_core(num_blocks: int, *, caching: bool) -> EngineCore:
    class Nothing:
        def token_bytes(self, token_id: int) -> bytes:
            return b""

        def is_special(self, token_id: int) -> bool:
            return False

    return EngineCore(
        scheduler=Scheduler(
            kv=KVCacheManager(num_blocks=num_blocks, block_size=4, enable_prefix_caching=caching),
            policy=FCFSPolicy(),
            door=Door(max_model_len=num_blocks * 4, vocab_size=TINY.vocab_size),
            max_num_batched_tokens=MAX_SEQS,
            max_num_seqs=MAX_SEQS,
        ),
        executor=ReferenceExecutor(TINY, tiny_weights(), num_blocks=num_blocks, block_size=4),
        outputs=OutputProcessor(Nothing()),  # type: ignore[arg-type]
        clock=MonotonicClock(),
        eos_token_ids=(),
        seeds=random.Random(0),
        debug_invariants=True,
    )


def test_a_tiny_model_on_the_reference_executor_without_any_exception() -> None:
    prompts = shared_prefix_prompts(TINY.vocab_size, 3, 30)
    core, watch = tiny_core(24, caching=True), Watch()
    core.add_observer(watch)
    crowd = run(core, prompts, 24, seed=2)
    check_crowd(watch, core)
    alone_core = tiny_core(24, caching=False)
    assert crowd == [run(alone_core, [prompt], 24, seed=None)[0] for prompt in prompts]
