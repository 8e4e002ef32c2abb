"""A stream of arrivals through the scheduler on a virtual clock, for tests that measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headway.clock import VirtualClock
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.plan import StepPlan
from headway.core.policies import POLICIES
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.metrics import Costs, RequestRecord, StepRecord
from headway.sim.executor import SimulatedExecutor

STEP_S, TOKEN_S, COPY_S = 0.005, 0.0005, 0.0002
VOCAB = 1000


@dataclass(frozen=True)
class Coming:
    """A request that arrives at `at_s`."""

    name: str
    at_s: float
    num_prompt: int
    max_tokens: int
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None


def cost(plan: StepPlan) -> float:
    """Seconds of a step: a fixed part, its tokens, and its copies."""
    return STEP_S + TOKEN_S * plan.num_tokens + COPY_S * len(plan.copies_out + plan.copies_in)


@dataclass
class Simulation:
    """`run` takes the arrivals; afterwards the records are there."""

    num_blocks: int = 4096
    block_size: int = 16
    budget: int = 256
    width: int = 64
    max_model_len: int = 8192
    policy: str = "fcfs"
    policy_options: dict[str, Any] = field(default_factory=dict)
    caching: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    """Of the scheduler."""
    reserve: bool = True
    watch: Callable[[Simulation, StepPlan], None] = lambda simulation, plan: None
    """Called with every plan, before it runs."""
    steps: list[StepRecord] = field(default_factory=list)
    ended: dict[str, RequestRecord] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        kv = KVCacheManager(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            enable_prefix_caching=self.caching,
            watermark=0.01,
            reserve_full_prompt=self.reserve,
        )
        length = min(self.max_model_len, self.num_blocks * self.block_size)
        self.policy_object = POLICIES[self.policy](**self.policy_options)
        self.scheduler = Scheduler(
            kv=kv,
            policy=self.policy_object,
            door=Door(max_model_len=length, vocab_size=VOCAB),
            max_num_batched_tokens=self.budget,
            max_num_seqs=self.width,
            **self.options,
        )
        self.executor = SimulatedExecutor(
            clock=self.clock,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=VOCAB,
            cost=cost,  # type: ignore[arg-type]
        )

    def run(self, arrivals: Sequence[Coming]) -> Simulation:
        coming = sorted(arrivals, key=lambda c: c.at_s)
        index = 0
        while index < len(coming) or self.scheduler.has_work:
            while index < len(coming) and coming[index].at_s <= self.clock.now():
                self._add(coming[index])
                index += 1
            if not self.scheduler.has_work:
                self.clock.advance(coming[index].at_s - self.clock.now())
                continue
            plan = self.scheduler.schedule(self.clock.now(), Costs(TOKEN_S, COPY_S))
            self.watch(self, plan)
            result = self.executor.collect(self.executor.submit(plan))
            outcome = self.scheduler.apply(result, self.clock.now())
            self.steps += outcome.records
            self.ended.update((record.request_id, record) for record in outcome.ended)
        return self

    def first_token_after_s(self, name: str) -> float:
        """TTFT."""
        record = self.ended[name]
        assert record.first_token_s is not None
        return record.first_token_s - record.arrival_s

    def _add(self, coming: Coming) -> None:
        random = Random(coming.name)
        request = Request(
            coming.name,
            [random.randrange(VOCAB) for _ in range(coming.num_prompt)],
            SamplingParams(max_tokens=coming.max_tokens),
            arrival_s=coming.at_s,
            tenant=coming.tenant,
            priority=coming.priority,
            deadline_s=coming.deadline_s if self.policy == "deadline" else None,
        )
        self.requests[coming.name] = request
        self.scheduler.add([request], self.clock.now())
