"""Runs that are recorded, for tests: the real engine with the simulated executor."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from driver import Driver
from headway.clock import VirtualClock
from headway.core.drafting import NO_DRAFTS
from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, StepPlan, StepResult
from headway.core.request import FinishReason
from headway.core.step import StepOutcome
from headway.engine.core import EngineCore
from headway.engine.outputs import NewRequest, OutputProcessor
from headway.errors import QueueFull
from headway.metrics import Costs, StepRecord
from headway.record.recorder import Recorder, RecordingFile
from headway.record.setup import SchedulerConfig, build_scheduler
from headway.sim.executor import LinearCost, SimulatedExecutor

VOCAB = 26
COSTS = Costs(1e-3, 1e-4)


class Letters:
    def token_bytes(self, token_id: int) -> bytes:
        return chr(ord("a") + token_id).encode()

    def is_special(self, token_id: int) -> bool:
        return False


class Flaky(SimulatedExecutor):
    """Raises in some steps, and has no token for the first chunk of some others."""

    fail_at: frozenset[int] = frozenset()
    nan_at: frozenset[int] = frozenset()

    def submit(self, plan: StepPlan) -> tuple[StepResult, float]:
        if plan.step in self.fail_at:
            raise RuntimeError("out of luck")
        result, seconds = super().submit(plan)
        if plan.step in self.nan_at and plan.chunks and plan.chunks[0].sample:
            tokens = (None, *result.token_ids[1:])
            accepted = {i: drafts for i, drafts in result.accepted.items() if i}
            result = replace(
                result, token_ids=tokens, accepted=accepted, errors={0: ChunkError("NaN")}
            )
        return result, seconds


class RecordedEngine:
    """An engine of few and small blocks, recorded into a file."""

    def __init__(self, path: Path, *, content: bool = False, **config: object) -> None:
        settings = {
            "num_kv_blocks": 24,
            "block_size": 4,
            "max_model_len": 64,
            "max_num_batched_tokens": 24,
            "max_num_seqs": 4,
            **config,
        }
        self.config = SchedulerConfig(**settings)  # type: ignore[arg-type]
        self.clock = VirtualClock()
        self.file = RecordingFile(path, self.config)
        self.recorder = Recorder(self.file, block_size=4, content=content)
        self.executor = Flaky(
            clock=self.clock,
            num_blocks=self.config.num_kv_blocks,
            block_size=4,
            vocab_size=VOCAB,
            cost=LinearCost(0.1, 0.01),
        )
        self.core = EngineCore(
            scheduler=build_scheduler(self.config, vocab_size=VOCAB, hash_secret=99),
            executor=self.executor,
            outputs=OutputProcessor(Letters()),  # type: ignore[arg-type]
            clock=self.clock,
            eos_token_ids=(3,),
            seeds=random.Random(0),
            recorder=self.recorder,
            debug_invariants=True,
        )
        self.steps: list[StepRecord] = []
        self.reasons: dict[str, str] = {}
        self.tokens: dict[str, list[int]] = {}
        self.core.add_observer(self._observe)

    def _observe(self, step, ended):  # type: ignore[no-untyped-def]
        self.steps += [step] if step else []
        self.reasons.update((record.request_id, record.finish_reason) for record in ended)

    def add(self, name: str, prompt: list[int], *, count: int = 1, **options: object) -> None:
        outer = {"priority", "tenant", "cache_salt", "deadline_s", "queue_timeout_s"}
        params = SamplingParams(
            **{"max_tokens": 8, "ignore_eos": True}  # type: ignore[arg-type]
            | {key: value for key, value in options.items() if key not in outer}
        )
        own = {key: value for key, value in options.items() if key in outer}
        names = [f"{name}-{index}" if index else name for index in range(count)]
        self.core.add(
            [
                NewRequest(item, prompt, params, index=index, **own)  # type: ignore[arg-type]
                for index, item in enumerate(names)
            ]
        )
        self.tokens.update((item, list(prompt)) for item in names)

    def step(self) -> None:
        for delta in self.core.step():
            self.tokens[delta.request_id] += delta.token_ids

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def close(self) -> None:
        self.recorder.close()
        self.file.close()


class RecordedDriver(Driver):
    """A driver whose calls are recorded: up to two plans in flight, failures, NaN."""

    def record_to(self, path: Path, **config: object) -> None:
        self.file = RecordingFile(
            path,
            SchedulerConfig(
                num_kv_blocks=self.num_blocks,
                block_size=self.block_size,
                max_model_len=self.max_model_len or self.num_blocks * self.block_size,
                max_num_batched_tokens=self.budget,
                max_num_seqs=self.width,
                scheduling_policy=self.policy,
                watermark=self.watermark,
                enable_prefix_caching=self.caching,
                reserve_full_prompt=self.reserve,
                enable_chunked_prefill=self.chunked,
                long_prefill_token_threshold=self.threshold,
                max_skip_ahead=self.skip_ahead,
                in_batch_prefix_sharing=self.sharing,
                preempt_for_priority=self.preempt_for_priority,
                preemption_mode=self.mode,
                max_preemptions=self.max_preemptions,
                num_swap_blocks=self.swap_slots,
                max_num_queued_reqs=self.max_reqs,
                max_num_queued_tokens=self.max_tokens,
            ),
        )
        self.recorder = Recorder(self.file, block_size=self.block_size)
        scheduler, recorder = self.scheduler, self.recorder
        schedule, apply, fail, flush = (
            scheduler.schedule,
            scheduler.apply,
            scheduler.fail,
            scheduler.flush,
        )

        def recorded_schedule(
            now: float,
            costs: Costs | None = None,
            drafts: Mapping[str, Sequence[int]] = NO_DRAFTS,
        ) -> StepPlan:
            plan = schedule(now, costs, drafts)
            recorder.planned(plan, now, costs, drafts)
            return plan

        def recorded_apply(result: StepResult, now: float) -> StepOutcome:
            outcome = apply(result, now)
            recorder.applied(outcome, now, step=result.step, errors=result.errors)
            return outcome

        def recorded_fail(error: str, now: float) -> StepOutcome:
            outcome = fail(error, now)
            recorder.applied(outcome, now, step=outcome.records[-1].step, failed=error)
            return outcome

        def recorded_flush() -> StepOutcome:
            outcome = flush()
            recorder.applied(outcome, self.now)
            return outcome

        scheduler.schedule = recorded_schedule  # type: ignore[method-assign]
        scheduler.apply = recorded_apply  # type: ignore[method-assign]
        scheduler.fail = recorded_fail  # type: ignore[method-assign]
        scheduler.flush = recorded_flush  # type: ignore[method-assign]

    def close(self) -> None:
        self.recorder.close()
        self.file.close()

    def play(self, seed: int, num_ops: int, *, drafting: bool = False) -> None:
        """Random calls, and all requests to their ends."""
        draw = random.Random(seed)
        for count in range(num_ops):
            choice = draw.random()
            live = [name for name in self.requests if not self.requests[name].finished]
            if choice < 0.35:
                self.arrive(f"r{count}", draw)
            elif choice < 0.42 and live:
                name = draw.choice(live)
                stops = self.requests[name].num_output_tokens and draw.random() < 0.5
                reason = FinishReason.STOP if stops else FinishReason.ABORT
                assert self.scheduler.finish(name, reason, self.now)
                self.recorder.finished(name, reason, self.now)
            elif choice < 0.75 and len(self.in_flight) < 2:
                drafts = self.guesses(draw) if drafting else NO_DRAFTS
                self.plan(fails=draw.random() < 0.04, drafts=drafts)
            else:
                self.collect(self.bad(draw))
        while self.in_flight:
            self.collect()
        self.run()

    def guesses(self, draw: random.Random) -> dict[str, list[int]]:
        """For some of those that can take drafts, tokens of which the first few are right."""
        return {
            request.request_id: [
                *self.right(request.request_id, draw.randint(0, 5)),
                *(draw.randrange(self.vocab_size) for _ in range(draw.randint(0, 3))),
            ]
            for request in self.scheduler.draftable
            if draw.random() < 0.7
        }

    def bad(self, draw: random.Random) -> dict[int, str] | None:
        """NaN for one chunk of the next result, now and then."""
        if not self.in_flight or draw.random() > 0.05:
            return None
        plan, handle = self.in_flight[0]
        sampling = [i for i, chunk in enumerate(plan.chunks) if chunk.sample]
        return {draw.choice(sampling): "NaN"} if handle and sampling else None

    def arrive(self, name: str, draw: random.Random) -> None:
        """A prompt of its own, or one that goes on from what another request has by now."""
        others = [r.token_ids for r in self.requests.values()]
        prefix = (
            draw.choice(others)[: draw.randint(1, 24)] if others and draw.random() < 0.7 else []
        )
        prompt = [*prefix, *(draw.randrange(self.vocab_size) for _ in range(draw.randint(1, 12)))]
        request = self.make(
            name,
            prompt,
            max_tokens=draw.choice([0, 1, 5, 20, None]),
            priority=draw.randint(0, 3) if self.policy == "priority" else 0,
            tenant=draw.choice("ab"),
            salt=draw.choice([None, None, "s"]),
            deadline_s=draw.choice([None, 5.0]) if self.policy == "deadline" else None,
            queue_timeout_s=draw.choice([None, None, 6.0]),
            prompt_logprobs=draw.choice([None, None, None, 1]),
            stop_token_ids=draw.choice([[], [1, 2, 3]]),
        )
        try:
            self.scheduler.add([request], self.now)
        except QueueFull:
            del self.requests[name], self.prompts[name]
        else:
            self.recorder.added([request], self.now)
