"""One engine: requests in, deltas out, a step at a time."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from headway.clock import Clock
from headway.core.drafting import NO_DRAFTS
from headway.core.plan import ChunkError, Executor, StepPlan
from headway.core.request import FinishReason, Request
from headway.core.scheduler import Scheduler
from headway.core.step import StepOutcome
from headway.core.structured import Grammar, StructuredOutputs
from headway.engine.costs import CostMeter
from headway.engine.outputs import NewRequest, OutputDelta, OutputProcessor
from headway.engine.pace import Pace
from headway.engine.speculation import Speculator
from headway.engine.threaded import ThreadedExecutor
from headway.errors import InvalidRequest
from headway.grammar.pool import GrammarPool
from headway.metrics import Costs, EngineState, Observer, RequestRecord

__all__ = ["EngineCore", "Grammars", "Recorder"]

Grammars = Mapping[StructuredOutputs, Grammar]
NO_GRAMMARS: Grammars = MappingProxyType({})

logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """Is told of every call that changes the scheduler, after it, with the engine's lock held.

    `applied` tells of a result (with the `errors` of its chunks by index), a failure (why it
    `failed`), or, without a `step`, of what ended where nothing was run.
    """

    def added(self, requests: Sequence[Request], now: float) -> None: ...
    def finished(self, request_id: str, reason: FinishReason, now: float) -> None: ...
    def planned(
        self, plan: StepPlan, now: float, costs: Costs | None, drafts: Mapping[str, Sequence[int]]
    ) -> None: ...
    def applied(
        self,
        outcome: StepOutcome,
        now: float,
        *,
        step: int | None = None,
        errors: Mapping[int, ChunkError] | None = None,
        failed: str | None = None,
    ) -> None: ...
    def close(self) -> None: ...


class _Submitted(NamedTuple):
    plan: StepPlan
    handle: Any
    """The executor's, or what it raised instead."""
    time_s: float


class EngineCore:
    """Joins a scheduler, an executor and the text of the outputs.

    `add` and `abort` may be called from any thread, `step` from one at a time: a lock guards
    scheduler and outputs, and is never held while the model runs.

    Args:
        async_scheduling: have two plans in flight, so that the next is made, and the output of the
            last given out, while a step runs (rule S11). Of use where `submit` returns at once.
        pace: when to make the next plan while a step runs; None: at once.
        speculator: makes drafts (rule S14); None: there are none.
        eos_token_ids: tokens that end a request unless it ignores them.
        seeds: draws the seed of a request that has none.
        grammars: compiles what outputs are held to; None: no request may ask for that.
        costs: measures what the scheduler is told of the executor; None: it is told nothing.
        queue_timeout_s: of a request that has none of its own; None: it may wait for ever.
        recorder: keeps what happened, so that it can be replayed; None: nobody does.
        debug_invariants: check the scheduler's invariants after every step (slow).
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        outputs: OutputProcessor,
        clock: Clock,
        eos_token_ids: Sequence[int],
        seeds: random.Random,
        grammars: GrammarPool | None = None,
        costs: CostMeter | None = None,
        queue_timeout_s: float | None = None,
        recorder: Recorder | None = None,
        async_scheduling: bool = False,
        pace: Pace | None = None,
        speculator: Speculator | None = None,
        debug_invariants: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._outputs = outputs
        self._clock = clock
        self._eos_token_ids = tuple(eos_token_ids)
        self._seeds = seeds
        self._grammars = grammars
        self._costs = costs
        self._queue_timeout_s = queue_timeout_s
        self._recorder = recorder
        self._debug_invariants = debug_invariants
        self._speculator = speculator
        self._most_in_flight = 2 if async_scheduling else 1
        self._pace = pace
        self._collected_s = 0.0
        """When the last result was taken: what was submitted by then runs since."""
        self._in_flight: deque[_Submitted] = deque()
        """Plans that were submitted and not collected, by the thread that steps."""
        self._submitting: StepPlan | None = None
        """On its way there: an executor may run it before `submit` returns."""
        self._observers: list[Observer] = []
        self._lock = threading.Lock()

    @property
    def has_work(self) -> bool:
        with self._lock:
            return self._scheduler.has_work

    @property
    def state(self) -> EngineState:
        """For observers alone: they are called with the lock held."""
        return self._scheduler.state

    @property
    def tokens_in_flight(self) -> int:
        """Of the plans that run, or are to run next; for any thread."""
        plans = [item.plan for item in tuple(self._in_flight)]
        if (submitting := self._submitting) is not None:
            plans.append(submitting)
        return sum(plan.num_tokens for plan in plans)

    def add_observer(self, observer: Observer) -> None:
        """`observer` is called in the stepping thread, after each step, with the engine's lock
        held: it must not call the engine, and may ask for its `state`."""
        self._observers.append(observer)

    def check_room(self, num_reqs: int = 1) -> None:
        """Raises QueueFull: to be asked before any work on a prompt (rule A1)."""
        with self._lock:
            self._scheduler.check_room(self._clock.now(), num_reqs)

    def compile(self, new: Sequence[NewRequest]) -> Future[Grammars]:
        """What requests' outputs are to be held to, for `add`. Returns at once, with a future that
        is done where none asks for that; it fails with InvalidRequest or QueueFull."""
        outputs = (item.params.structured_outputs for item in new)
        asked = {one for one in outputs if one is not None}
        if asked and self._grammars is not None:
            return self._grammars.compile_all(asked)
        future = Future[Grammars]()
        if asked:
            error = InvalidRequest("structured_outputs", "are not supported by this engine")
            future.set_exception(error)
        else:
            future.set_result({})
        return future

    def add(self, new: Sequence[NewRequest], grammars: Grammars = NO_GRAMMARS) -> None:
        """Accepts all of them, or raises InvalidRequest or QueueFull and accepts none.

        A request is one completion here; `fan_out` makes those of an `n`. `grammars` are those
        of `compile`.
        """
        assert all(item.params.n == 1 for item in new), "fan_out comes first"
        # Once for all that have the same params: there may be thousands of requests.
        params = {id(item.params): item.params for item in new}
        bad_words = {key: self._outputs.bad_words(item) for key, item in params.items()}
        with self._lock:
            now = self._clock.now()
            requests = [
                Request(
                    item.request_id,
                    item.prompt_token_ids,
                    item.params,
                    arrival_s=now,
                    seed=self._seeds.getrandbits(63),
                    eos_token_ids=self._eos_token_ids,
                    priority=item.priority,
                    tenant=item.tenant,
                    cache_salt=item.cache_salt,
                    deadline_s=item.deadline_s,
                    queue_timeout_s=(
                        self._queue_timeout_s
                        if item.queue_timeout_s is None
                        else item.queue_timeout_s
                    ),
                    index=item.index,
                    bad_words=bad_words[id(item.params)],
                    constraint=(
                        None
                        if item.params.structured_outputs is None
                        else grammars[item.params.structured_outputs].start()
                    ),
                )
                for item in new
            ]
            self._scheduler.add(requests, now)
            if self._recorder is not None:
                self._recorder.added(requests, now)
            for request in requests:
                self._outputs.add(request)

    def abort(self, request_id: str) -> OutputDelta | None:
        """Ends a request; its blocks are free in the next plan. None: it had ended already."""
        with self._lock:
            self._finish(request_id, FinishReason.ABORT)
            return self._outputs.end(request_id, FinishReason.ABORT)

    def close(self) -> None:
        """Ends the recording, if there is one, and the threads of the executor and of grammars, if
        they have any; to be called once nothing more will be done."""
        with self._lock:
            if self._recorder is not None:
                self._recorder.close()
                self._recorder = None
        if isinstance(self._executor, ThreadedExecutor):
            self._executor.close()
        if self._grammars is not None:
            self._grammars.close()

    def step(self) -> list[OutputDelta]:
        """Submits the plans that can be made by now, and takes the result of the oldest; what that
        adds to each request, in the order of the batch."""
        while self._may_plan:
            plan = self._plan()
            if not plan.to_run:
                break
            self._submit(plan)
        if self._in_flight:
            return self._collect()
        with self._lock:
            return self._report(self._scheduler.flush(), self._clock.now())

    @property
    def _may_plan(self) -> bool:
        if not self._in_flight:
            return True
        if isinstance(self._in_flight[-1].handle, BaseException):
            return False  # it was not taken, so what comes after it is void too
        if self._speculator is not None and self._speculator.engaged:
            return False  # what is guessed at depends on the result
        return len(self._in_flight) < self._most_in_flight and not self._ends_first()

    def _ends_first(self) -> bool:
        """Waits until the next plan is to be made; True: the running step has ended by then."""
        if self._pace is None:
            return False
        plan, handle, time_s = self._in_flight[-1]
        began_s = max(time_s, self._collected_s)
        return self._pace.wait(handle, plan.num_tokens, self._clock.now() - began_s)

    def _plan(self) -> StepPlan:
        drafts = NO_DRAFTS
        if self._speculator is not None and not self._in_flight:
            with self._lock:
                requests = self._scheduler.draftable
            drafts = self._speculator.propose(requests)  # a model may run
        with self._lock:
            now = self._clock.now()
            costs = None if self._costs is None else self._costs.costs
            plan = self._scheduler.schedule(now, costs, drafts)
            if self._recorder is not None:
                self._recorder.planned(plan, now, costs, drafts)
        return plan

    def _submit(self, plan: StepPlan) -> None:
        """What is raised is told of when it is the plan's turn: those before it stand."""
        self._submitting = plan
        try:
            handle = self._executor.submit(plan)
        except BaseException as error:
            handle = error
        self._in_flight.append(_Submitted(plan, handle, self._clock.now()))
        self._submitting = None

    def _collect(self) -> list[OutputDelta]:
        plan, handle, _ = self._in_flight[0]
        try:
            if isinstance(handle, BaseException):
                raise handle
            result = self._executor.collect(handle)
            self._in_flight.popleft()
        except BaseException as error:
            self._in_flight.clear()
            message = f"the step failed: {type(error).__name__}: {error}"
            with self._lock:
                now = self._clock.now()
                outcome = self._scheduler.fail(message, now)
                deltas = self._report(outcome, now, step=plan.step, failed=message)
            if not isinstance(error, Exception):
                raise  # Ctrl-C, for one: the caller's to deal with, and the engine can go on
            logger.exception("step %d failed", plan.step)
            return deltas
        with self._lock:
            now = self._collected_s = self._clock.now()
            outcome = self._scheduler.apply(result, now)
            if self._speculator is not None:
                self._speculator.observe(plan, result, outcome.records[-1])
            return self._report(outcome, now, step=plan.step, errors=result.errors)

    def _finish(self, request_id: str, reason: FinishReason) -> bool:
        """Called with the lock held. False: it had ended already."""
        now = self._clock.now()
        found = self._scheduler.finish(request_id, reason, now)
        if found and self._recorder is not None:
            self._recorder.finished(request_id, reason, now)
        return found

    def _report(
        self,
        outcome: StepOutcome,
        now: float,
        *,
        step: int | None = None,
        errors: Mapping[int, ChunkError] | None = None,
        failed: str | None = None,
    ) -> list[OutputDelta]:
        """Called with the lock held. What it is about is said as in `Recorder.applied`."""
        if self._recorder is not None:
            self._recorder.applied(outcome, now, step=step, errors=errors, failed=failed)
        deltas, ended = list[OutputDelta](), outcome.ended
        for update in outcome.updates:
            delta = self._outputs.process(update)
            if delta is None:
                continue
            deltas.append(delta)
            if delta.finish_reason == FinishReason.STOP != update.finish_reason:
                ended = self._stop(delta.request_id, ended)
        if self._debug_invariants:
            self._scheduler.check()
        for record in outcome.records or (None,):
            for observes in (self._costs, self._pace):
                if observes is not None and record is not None:
                    observes.observe(record)
            for observer in self._observers:
                observer(record, ended)
            ended = ()
        return deltas

    def _stop(self, request_id: str, ended: tuple[RequestRecord, ...]) -> tuple[RequestRecord, ...]:
        """A stop string was completed: it is why the request ends, even at its last token."""
        if self._finish(request_id, FinishReason.STOP):
            return ended
        return tuple(
            replace(record, finish_reason=FinishReason.STOP.value)
            if record.request_id == request_id
            else record
            for record in ended
        )
