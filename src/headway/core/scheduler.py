"""Decides at every step who runs and how many tokens each gets.

The rules are numbered in docs/design/scheduling.md. There is no prefill phase and no decode
phase: a step gives requests tokens until what is computed catches up with what is known (S1).
Time comes in as an argument; the same calls give the same plans (S16).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Chunk, StepPlan, StepResult
from headway.core.policy import Policy
from headway.core.prefix_cache import Hit
from headway.core.request import FinishReason, Request, RequestState
from headway.core.step import Grant, Step, StepOutcome, Update, take_prompt_rows
from headway.core.waiting import WaitingQueue
from headway.errors import InvalidRequest
from headway.metrics import RequestRecord, StepRecord

__all__ = ["Scheduler"]


class Scheduler:
    """One engine's scheduler. Not thread-safe: its owner serialises the calls.

    schedule() may be called again before the result of the plan before is applied; results
    are applied in the order of their plans (rule S11).
    """

    def __init__(
        self,
        *,
        kv: KVCacheManager,
        policy: Policy,
        door: Door,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
    ) -> None:
        assert max_num_batched_tokens >= max_num_seqs > 0, "rule S2, checked in config"
        assert enable_chunked_prefill or max_num_batched_tokens >= door.max_model_len, "rule S8"
        assert door.max_model_len <= kv.num_blocks * kv.block_size, "rule S10"
        self._kv = kv
        self._policy = policy
        self._door = door
        self._budget = max_num_batched_tokens
        self._width = max_num_seqs
        self._chunked = enable_chunked_prefill
        self._long_prefill = long_prefill_token_threshold
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(policy.rank)
        self._running: dict[str, Request] = {}
        """In order of admission (S3)."""
        self._suspects: deque[Request] = deque()
        """Requests of a failed step, to be run one at a time (A3)."""
        self._in_flight: deque[Step] = deque()
        self._ended: list[RequestRecord] = []  # since the last outcome
        self._unreported: list[StepRecord] = []  # of plans that came out empty since then
        self._num_steps = self._num_arrived = 0

    # ------------------------------------------------------------- arrival, end

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Some request has not ended, or something is still to be applied or reported."""
        return bool(self._requests or self._in_flight or self._ended)

    def check_room(self, now: float, num_reqs: int = 1) -> None:
        """Raises QueueFull before any work on a prompt is done (A1)."""
        self._door.check_room(now, num_reqs)

    def add(self, requests: Sequence[Request], now: float) -> None:
        """Accepts all of them to wait, or raises what is wrong and accepts none."""
        new: set[str] = set()
        for request in requests:
            if request.request_id in self._requests or request.request_id in new:
                raise InvalidRequest("request_id", f"{request.request_id!r} is in use")
            new.add(request.request_id)
            if type(request.priority) is not int:
                raise InvalidRequest("priority", f"must be an integer, not {request.priority!r}")
            if request.priority and not self._policy.heeds_priority:
                raise InvalidRequest("priority", "needs scheduling_policy priority")
        self._door.check(requests, now)
        for request in requests:
            self._num_arrived += 1
            request.sequence = self._num_arrived
            self._requests[request.request_id] = request
            self._waiting.add(request)
            self._door.enter(request, now)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> bool:
        """Ends a request from outside: abort, or a stop string seen in its text.

        Its blocks are free in the next plan. False: it had ended already.
        """
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, reason, now)
        return request is not None

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        if request.state is RequestState.RUNNING:
            del self._running[request.request_id]
            self._kv.release(request)
        else:
            self._waiting.remove(request)
            if request.state is RequestState.WAITING:
                self._door.leave(request, now, admitted=False)
        request.end(reason)
        del self._requests[request.request_id]
        if request in self._suspects:
            self._suspects.remove(request)
        self._ended.append(request.record(now))

    # ----------------------------------------------------------------- planning

    def schedule(self, now: float) -> StepPlan:
        """Makes the next plan. One without chunks is not to be run: nothing can be done now."""
        assert len(self._in_flight) < 2, "a chunk can refer to the plan just before alone (S11)"
        self._num_steps += 1
        step = Step(self._num_steps, now, self._budget, self._kv.num_evictions)
        if self._suspects:
            self._run_alone(step, self._suspects[0])
        else:
            self._continue_running(step)
            self._admit_waiting(step)
        step.close(self._kv, len(self._running), len(self._waiting))
        if step.grants:
            self._in_flight.append(step)
        else:  # not to be run, but what making it cost is to be told
            self._kv.poison(step.plan.zero_blocks)
            if step.preemptions:
                self._unreported.append(step.applied(now, discarded_tokens=0))
        return step.plan

    def _continue_running(self, step: Step) -> None:
        for request in list(self._running.values()):
            if step.budget_left == 0:
                break
            num_tokens = self._chunk_size(step, request, request.num_computed_tokens)
            # Zero tokens: preempted below, or all it may compute is in flight (S5).
            if num_tokens and request.state is RequestState.RUNNING:
                self._continue(step, request, num_tokens)

    def _continue(self, step: Step, request: Request, num_tokens: int) -> None:
        """Gives a running request tokens, preempting others for its blocks (S6)."""
        while not self._kv.extend(request, num_tokens):
            victim = self._policy.victim(self._running.values())
            self._preempt(step, victim, "memory")
            if victim is request:
                return
        self._grant(step, Grant(request, request.num_computed_tokens, num_tokens))

    def _admit_waiting(self, step: Step) -> None:
        while self._waiting:
            step.waiting_for = self._closed_to_all(step)
            if step.waiting_for:
                break
            request = self._waiting.head
            hit = self._kv.lookup(request)
            num_tokens = self._chunk_size(step, request, self._hit_tokens(hit))
            step.waiting_for = self._held_up_by(request, hit, num_tokens)
            if step.waiting_for:
                break
            admitted = self._admit(step, request, hit, num_tokens)
            assert admitted, "what nothing holds up has its blocks"

    def _closed_to_all(self, step: Step) -> str:
        """Why nobody at all can be admitted now; empty if somebody might (S7, S8)."""
        if step.preemptions["memory"]:
            return "preempted"
        if len(self._running) >= self._width:
            return "width"
        return "" if step.budget_left else "budget"

    def _held_up_by(self, request: Request, hit: Hit, num_tokens: int) -> str:
        """Why the head of the queue cannot be admitted; empty if it can (S8, K7, K8)."""
        rest = request.num_tokens_to_compute - self._hit_tokens(hit)
        if num_tokens < rest and not self._chunked:
            return "budget"
        return self._kv.held_up_by(request, hit, num_tokens, idle=not self._running) or ""

    def _admit(self, step: Step, request: Request, hit: Hit, num_tokens: int) -> bool:
        """Moves a waiting request to the end of running; False: too few blocks, nothing done."""
        if not self._kv.admit(request, hit, num_tokens):
            return False
        self._waiting.remove(request)
        start = self._hit_tokens(hit)
        grant = Grant(request, start, num_tokens, admission="again")
        if request.state is RequestState.WAITING:
            self._door.leave(request, step.time_s, admitted=True)
            request.first_scheduled_s = step.time_s
            request.num_cached_tokens = start
            grant.admission = "first"
        if self._kv.may_read(request):
            grant.lookup_tokens, grant.hit_tokens = len(request.token_ids), start
        request.move_to(RequestState.RUNNING)
        request.num_computed_tokens = start
        self._running[request.request_id] = request
        self._grant(step, grant)
        return True

    def _run_alone(self, step: Step, request: Request) -> None:
        """After a failed step: this request and nothing else, whoever must give way (A3)."""
        step.waiting_for = "isolated"
        while request.state is not RequestState.RUNNING:
            hit = self._kv.lookup(request)
            num_tokens = self._chunk_size(step, request, self._hit_tokens(hit))
            if self._admit(step, request, hit, num_tokens):
                return
            self._preempt(step, self._other_victim(request), "memory")
        num_tokens = self._chunk_size(step, request, request.num_computed_tokens)
        while not self._kv.extend(request, num_tokens):
            self._preempt(step, self._other_victim(request), "memory")
        if num_tokens:
            self._grant(step, Grant(request, request.num_computed_tokens, num_tokens))

    def _other_victim(self, request: Request) -> Request:
        others = [other for other in self._running.values() if other is not request]
        assert others, "rule S10: every accepted request fits alone"
        return self._policy.victim(others)

    def _chunk_size(self, step: Step, request: Request, start: int) -> int:
        """How many tokens from `start` on the request may be given (S4)."""
        num_tokens = request.num_tokens_to_compute - start
        if 0 < self._long_prefill < num_tokens and len(self._requests) > 1:
            num_tokens = self._long_prefill
        return min(num_tokens, step.budget_left)

    def _grant(self, step: Step, grant: Grant) -> None:
        request = grant.request
        step.grants[request.request_id] = grant
        step.budget_left -= grant.num_tokens
        # Computed advances now, so that the next plan can be made while this one runs (S11).
        request.num_computed_tokens = grant.end
        request.num_pending += grant.samples
        self._kv.expect(request)
        self._kv.commit(request)

    def _preempt(self, step: Step, victim: Request, cause: str) -> None:
        """Recompute (P1): the victim's blocks go, its output and its place in line stay."""
        grant = step.grants.pop(victim.request_id, None)
        if grant is not None:
            step.budget_left += grant.num_tokens
            victim.num_computed_tokens = grant.start
            victim.num_pending -= grant.samples
        self._kv.release(victim, num_valid_tokens=victim.num_computed_tokens)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.move_to(RequestState.PREEMPTED)
        del self._running[victim.request_id]
        self._waiting.add(victim)
        step.preemptions[cause] += 1

    def _hit_tokens(self, hit: Hit) -> int:
        return len(hit.blocks) * self._kv.block_size

    # ----------------------------------------------------------------- applying

    def apply(self, result: StepResult, now: float) -> StepOutcome:
        """Takes the result of the oldest plan in flight."""
        step = self._in_flight.popleft()
        assert result.step == step.number, "results come in the order of their plans"
        updates: list[Update] = []
        discarded = 0
        for index, chunk in enumerate(step.plan.chunks):
            grant = step.grants[chunk.request_id]
            if grant.request.finished:
                discarded += grant.num_tokens
                continue
            grant.request.num_pending -= grant.samples
            error = result.errors.get(index)
            if error is None:
                assert (result.token_ids[index] is not None) == grant.samples
                update = self._advance(grant, chunk, result, index, now)
            else:
                self._kv.poison(chunk.block_table)
                if grant.request.state is RequestState.RUNNING:  # it may have grown since
                    self._kv.poison(self._kv.table(grant.request))
                self._end(grant.request, FinishReason.ERROR, now)
                update = Update(grant.request, None, FinishReason.ERROR, error)
            if update is not None:
                updates.append(update)
        return self._outcome(updates, [step.applied(now, discarded_tokens=discarded)])

    def _advance(
        self, grant: Grant, chunk: Chunk, result: StepResult, index: int, now: float
    ) -> Update | None:
        """The chunk has run: its token, if it sampled one, is known from here on."""
        request, token_id = grant.request, result.token_ids[index]
        rows = take_prompt_rows(request, chunk, result.prompt_logprobs.get(index, ()))
        reason: FinishReason | None = None
        if token_id is not None:
            request.token_ids.append(token_id)
            if request.first_token_s is None:
                request.first_token_s = now
            if token_id in request.stop_token_ids:
                reason = FinishReason.STOP
            if request.state is RequestState.RUNNING:
                self._kv.commit(request)
        # With max_tokens 0 there is no token: it ends once the prompt is computed (K3).
        full = len(request.token_ids) >= request.max_total_tokens
        if reason is None and full and grant.end >= request.num_prompt_tokens:
            reason = FinishReason.LENGTH
        if self._suspects and self._suspects[0] is request and grant.end >= request.isolated_until:
            self._suspects.popleft()
        if reason is not None:
            self._end(request, reason, now)
        if token_id is None and reason is None and not rows:
            return None
        return Update(request, token_id, reason, None, result.logprobs.get(index), rows)

    def fail(self, error: str, now: float) -> StepOutcome:
        """The oldest plan in flight failed: it and all later ones are void (A3).

        Their requests run one at a time from here on; the one that fails alone is at fault.
        """
        dropped, self._in_flight = list(self._in_flight), deque()
        suspect = self._suspects[0] if self._suspects else None
        for step in dropped:
            self._kv.poison(step.plan.zero_blocks)
            for chunk in step.plan.chunks:
                self._kv.forget_written(chunk.block_table, chunk.start, chunk.end)
        for step in dropped:
            for grant in step.grants.values():
                self._withdraw(grant)
        updates = []
        if suspect is not None and list(dropped[0].grants) == [suspect.request_id]:
            self._end(suspect, FinishReason.ERROR, now)
            updates.append(Update(suspect, None, FinishReason.ERROR, error))
        records = [
            step.applied(now, discarded_tokens=step.plan.num_tokens, failed=True)
            for step in dropped
        ]
        return self._outcome(updates, records)

    def _withdraw(self, grant: Grant) -> None:
        """A dropped chunk: its request waits again, computed from the start, and is suspect."""
        request = grant.request
        if request.finished:
            return
        request.num_pending -= grant.samples
        if request in self._suspects:
            request.isolated_until = max(request.isolated_until, grant.end)
        else:
            request.isolated_until = grant.end
            self._suspects.append(request)
        if request.state is RequestState.RUNNING:
            self._kv.release(request)
            request.num_computed_tokens = 0
            request.move_to(RequestState.PREEMPTED)
            del self._running[request.request_id]
            self._waiting.add(request)

    def flush(self) -> StepOutcome:
        """What ended since the last outcome, where no step is to be run."""
        return self._outcome([], [])

    def _outcome(self, updates: list[Update], records: list[StepRecord]) -> StepOutcome:
        ended, self._ended = tuple(self._ended), []
        records, self._unreported = [*self._unreported, *records], []
        return StepOutcome(tuple(updates), tuple(records), ended)

    def check(self) -> None:
        """What must hold between calls (rules S2, S10, K9); for tests and debugging."""
        assert len(self._running) <= self._width
        assert len(self._running) + len(self._waiting) == len(self._requests)
        for request in self._running.values():
            assert request.state is RequestState.RUNNING
            assert request.num_computed_tokens <= request.num_expected_tokens
            assert len(request.token_ids) <= request.max_total_tokens
        for request in self._waiting:
            assert request.state in (RequestState.WAITING, RequestState.PREEMPTED)
            assert request.num_computed_tokens == 0
        never_admitted = [r for r in self._waiting if r.state is RequestState.WAITING]
        assert self._door.num_queued_reqs == len(never_admitted)
        assert self._door.num_queued_tokens == sum(r.num_prompt_tokens for r in never_admitted)
        self._kv.check(self._running.values())
