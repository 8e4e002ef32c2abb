"""Whole engines over small executors, for tests that compare what they put out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.clock import Clock, VirtualClock
from headway.core.params import SamplingParams
from headway.core.plan import Executor
from headway.engine.core import EngineCore
from headway.engine.outputs import NewRequest, OutputDelta, OutputProcessor
from headway.engine.speculation import Speculator
from headway.grammar.pool import GrammarPool
from headway.metrics import RequestRecord, StepRecord
from headway.record.recorder import Recorder
from headway.record.setup import SchedulerConfig, build_scheduler

__all__ = ["SMALL", "Letters", "TestEngine"]

SMALL = SchedulerConfig(
    num_kv_blocks=22,
    block_size=4,
    max_model_len=64,
    max_num_batched_tokens=24,
    max_num_seqs=6,
)
"""Few blocks: requests are preempted."""


class Letters:
    """Token n is the n-th letter, and round again."""

    def token_bytes(self, token_id: int) -> bytes:
        return chr(ord("a") + token_id % 26).encode()

    def is_special(self, token_id: int) -> bool:
        return False


@dataclass
class TestEngine:
    """An engine, and what it put out."""

    __test__ = False

    executor: Executor
    config: SchedulerConfig = SMALL
    vocab_size: int = 26
    tokenizer: Any = field(default_factory=Letters)
    eos_token_ids: tuple[int, ...] = ()
    grammars: GrammarPool | None = None
    clock: Clock = field(default_factory=VirtualClock)
    async_scheduling: bool = False
    speculator: Speculator | None = None
    recorder: Recorder | None = None
    steps: list[StepRecord] = field(default_factory=list)
    ended: dict[str, RequestRecord] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    last: dict[str, OutputDelta] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = EngineCore(
            scheduler=build_scheduler(self.config, vocab_size=self.vocab_size),
            executor=self.executor,
            outputs=OutputProcessor(self.tokenizer),
            clock=self.clock,
            eos_token_ids=self.eos_token_ids,
            seeds=random.Random(0),
            grammars=self.grammars,
            recorder=self.recorder,
            async_scheduling=self.async_scheduling,
            speculator=self.speculator,
            debug_invariants=True,
        )
        self.core.add_observer(self._observe)

    def _observe(self, step: StepRecord | None, ended: Sequence[RequestRecord]) -> None:
        self.steps += [step] if step else []
        self.ended |= {record.request_id: record for record in ended}

    def add(self, name: str, prompt: Sequence[int], **params: Any) -> None:
        options = {"max_tokens": 12, "temperature": 0.0, **params}
        new = [NewRequest(name, list(prompt), SamplingParams(**options))]
        self.core.add(new, self.core.compile(new).result())
        self.tokens[name], self.texts[name] = [], ""

    def step(self) -> None:
        for delta in self.core.step():
            self.take(delta)

    def abort(self, name: str) -> None:
        delta = self.core.abort(name)
        if delta is not None:
            self.take(delta)

    def take(self, delta: OutputDelta) -> None:
        assert delta.request_id not in self.last, "nothing comes after the end"
        self.tokens[delta.request_id] += delta.token_ids
        self.texts[delta.request_id] += delta.text
        if delta.finish_reason is not None:
            self.last[delta.request_id] = delta

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    @property
    def reasons(self) -> dict[str, str | None]:
        return {name: delta.finish_reason for name, delta in self.last.items()}
