"""A scheduler with the simulated executor, driven step by step, for tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headway.core.drafting import NO_DRAFTS
from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, StepPlan
from headway.core.preemption import Mode
from headway.core.request import FinishReason, Request
from headway.core.step import StepOutcome
from headway.metrics import Costs, RequestRecord, StepRecord
from headway.sim.executor import SimulatedExecutor, expected_tokens
from headway.sim.situations import Setup, compose

VOCAB = 1000


@dataclass
class Driver:
    """Steps a scheduler and keeps all that it reports; a second of virtual time per step."""

    num_blocks: int = 64
    block_size: int = 4
    budget: int = 64
    width: int = 8
    max_model_len: int | None = None
    policy: str = "fcfs"
    watermark: float = 0.0
    caching: bool = True
    reserve: bool = True
    chunked: bool = True
    threshold: int = 0
    skip_ahead: int = 0
    sharing: bool = True
    preempt_for_priority: bool = True
    mode: Mode = "recompute"
    max_preemptions: int = 8
    swap_slots: int = 0
    costs: Costs | None = None
    policy_options: dict[str, Any] = field(default_factory=dict)
    max_reqs: int | None = None
    max_tokens: int | None = None
    vocab_size: int = VOCAB
    max_logprobs: int = -1
    now: float = 0.0
    records: list[StepRecord] = field(default_factory=list)
    ended: list[RequestRecord] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    """Prompt tokens whose log-probabilities came, as they came."""
    requests: dict[str, Request] = field(default_factory=dict)
    prompts: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._expected: dict[str, list[int]] = {}
        self.max_model_len = self.max_model_len or self.num_blocks * self.block_size
        shared = {item.name for item in fields(Setup)} & {item.name for item in fields(self)}
        setup = Setup(**{name: getattr(self, name) for name in shared})
        self.kv, self.door, self.scheduler = compose(setup)
        self.executor = SimulatedExecutor(
            clock=None,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=self.vocab_size,
            verify=True,
        )
        self.in_flight: deque[tuple[StepPlan, Any]] = deque()

    def make(
        self,
        name: str,
        prompt: list[int] | int,
        *,
        priority: int = 0,
        salt: str | None = None,
        tenant: str = "",
        deadline_s: float | None = None,
        queue_timeout_s: float | None = None,
        index: int = 0,
        **params: object,
    ) -> Request:
        """A request; a number for `prompt` stands for that many tokens of its own."""
        if isinstance(prompt, int):
            prompt = [(hash(name) + i * 7) % self.vocab_size for i in range(prompt)]
        self.prompts[name] = list(prompt)
        self.requests[name] = Request(
            name,
            prompt,
            SamplingParams(**{"max_tokens": 4, **params}),  # type: ignore[arg-type]
            arrival_s=self.now,
            priority=priority,
            tenant=tenant,
            cache_salt=salt,
            deadline_s=deadline_s,
            queue_timeout_s=queue_timeout_s,
            index=index,
        )
        return self.requests[name]

    def add(self, name: str, prompt: list[int] | int, **options: object) -> Request:
        request = self.make(name, prompt, **options)  # type: ignore[arg-type]
        self.scheduler.add([request], self.now)
        return request

    def plan(
        self, *, fails: bool = False, drafts: Mapping[str, Sequence[int]] = NO_DRAFTS
    ) -> StepPlan:
        """Makes the next plan and submits it; `collect` takes its result.

        `fails`: the executor will raise; it and the plans after it are never run.
        """
        self.now += 1
        plan = self.scheduler.schedule(self.now, self.costs, drafts)
        if plan.to_run:
            fails = fails or any(handle is None for _, handle in self.in_flight)
            self.in_flight.append((plan, None if fails else self.executor.submit(plan)))
        return plan

    def collect(self, errors: dict[int, ChunkError] | None = None) -> StepOutcome:
        self.now += 1
        if not self.in_flight:
            return self._keep(self.scheduler.flush())
        _, handle = self.in_flight.popleft()
        if handle is None:
            self.in_flight.clear()
            return self._keep(self.scheduler.fail("the step failed", self.now))
        result = self.executor.collect(handle)
        if errors:
            tokens = tuple(
                None if i in errors else token for i, token in enumerate(result.token_ids)
            )
            accepted = {i: drafts for i, drafts in result.accepted.items() if i not in errors}
            result = replace(result, token_ids=tokens, accepted=accepted, errors=errors)
        return self._keep(self.scheduler.apply(result, self.now))

    def step(self, drafts: Mapping[str, Sequence[int]] = NO_DRAFTS) -> StepPlan:
        plan = self.plan(drafts=drafts)
        self.collect()
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until everything ended."""
        while self.scheduler.has_work:
            assert max_steps, "no progress"
            max_steps -= 1
            self.step()

    def abort(self, name: str) -> bool:
        return self.scheduler.finish(name, FinishReason.ABORT, self.now)

    def given(self, plan: StepPlan) -> dict[str, int]:
        return {chunk.request_id: chunk.num_tokens for chunk in plan.chunks}

    def output(self, name: str) -> list[int]:
        return self.requests[name].token_ids[len(self.prompts[name]) :]

    def expected(self, name: str) -> list[int]:
        """The output it must have, had it been alone and nothing gone wrong."""
        if name not in self._expected:
            request = self.requests[name]
            self._expected[name] = expected_tokens(
                self.prompts[name],
                request.max_total_tokens - request.num_prompt_tokens,
                self.vocab_size,
                request.stop_token_ids,
                request.params.min_tokens,
            )
        return self._expected[name]

    def right(self, name: str, count: int) -> list[int]:
        """The tokens that the request would sample next, ended or not."""
        known = self.requests[name].token_ids
        return expected_tokens(known, count, self.vocab_size)

    def _keep(self, outcome: StepOutcome) -> StepOutcome:
        self.records += outcome.records
        self.ended += outcome.ended
        for update in outcome.updates:
            rows = self.rows.setdefault(update.request.request_id, [])
            rows += [row.token_id for row in update.prompt_logprobs]
        self.errors.update(
            (update.request.request_id, update.error)
            for update in outcome.updates
            if update.error is not None
        )
        self.scheduler.check()
        return outcome
