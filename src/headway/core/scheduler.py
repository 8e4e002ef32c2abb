"""Decides at every step who runs and how many tokens each gets.

The rules are numbered in docs/design/scheduling.md. There is no prefill phase and no decode
phase: a step gives requests tokens until what is computed catches up with what is known (S1).
Time and measured costs come in as arguments; the same calls give the same plans (S16).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from headway.core.acceptance import Door
from headway.core.admission import Admission
from headway.core.drafting import NO_DRAFTS, draftable, give_drafts
from headway.core.isolation import Isolation
from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Chunk, StepPlan, StepResult
from headway.core.policy import Policy
from headway.core.preemption import Mode, Preemption
from headway.core.request import FinishReason, Request
from headway.core.roster import Roster
from headway.core.step import Step, StepOutcome, Update, take_prompt_rows
from headway.core.swap import SwapSpace
from headway.errors import InvalidRequest
from headway.metrics import Costs, EngineState, StepRecord

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
        max_skip_ahead: int = 0,
        in_batch_prefix_sharing: bool = True,
        preempt_for_priority: bool = True,
        preemption_mode: Mode = "recompute",
        max_preemptions: int = 8,
        num_swap_slots: int = 0,
    ) -> None:
        assert max_num_batched_tokens >= max_num_seqs > 0, "rule S2, checked in config"
        assert enable_chunked_prefill or max_num_batched_tokens >= door.max_model_len, "rule S8"
        assert door.max_model_len <= kv.num_blocks * kv.block_size, "rule S10"
        self._kv = kv
        self._policy = policy
        self._door = door
        self._budget = max_num_batched_tokens
        self._width = max_num_seqs
        self._long_prefill = long_prefill_token_threshold or max_num_batched_tokens
        swap = SwapSpace(num_swap_slots)
        self._roster = Roster(kv=kv, swap=swap, policy=policy, door=door)
        self._preemption = Preemption(
            self._roster, mode=preemption_mode, max_preemptions=max_preemptions
        )
        self._admission = Admission(
            self._roster,
            self._preemption,
            width=max_num_seqs,
            chunked=enable_chunked_prefill,
            max_skip_ahead=max_skip_ahead,
            share_prefixes=in_batch_prefix_sharing and kv.enable_prefix_caching,
            preempt_for_priority=preempt_for_priority,
        )
        self._isolation = Isolation(self._roster, self._preemption, self._admission)
        self._in_flight: deque[Step] = deque()
        self._updates: list[Update] = []  # of requests that ended while a plan was made
        self._unreported: list[StepRecord] = []  # of plans that came out empty
        self._num_steps = 0

    # ------------------------------------------------------------- arrival, end

    @property
    def state(self) -> EngineState:
        """As of the last call; what is planned counts as done."""
        return self._roster.state

    @property
    def has_work(self) -> bool:
        """Some request has not ended, or something is still to be applied or reported."""
        return bool(self._roster.requests or self._in_flight or self._roster.has_ended)

    def check_room(self, now: float, num_reqs: int = 1) -> None:
        """Raises QueueFull before any work on a prompt is done (A1)."""
        self._door.check_room(now, num_reqs)

    def add(self, requests: Sequence[Request], now: float) -> None:
        """Accepts all of them to wait, or raises what is wrong and accepts none."""
        new: set[str] = set()
        for request in requests:
            if request.request_id in self._roster.requests or request.request_id in new:
                raise InvalidRequest("request_id", f"{request.request_id!r} is in use")
            new.add(request.request_id)
            if type(request.priority) is not int:
                raise InvalidRequest("priority", f"must be an integer, not {request.priority!r}")
            if request.priority and not self._policy.heeds_priority:
                raise InvalidRequest("priority", "needs scheduling_policy priority")
            if request.deadline_s is not None and not self._policy.heeds_deadline:
                raise InvalidRequest("deadline_ms", "needs scheduling_policy deadline")
        self._door.check(requests, now)
        for request in requests:
            self._roster.enter(request, now)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> bool:
        """Ends a request from outside: abort, or a stop string seen in its text.

        Its blocks are free in the next plan. False: it had ended already.
        """
        request = self._roster.requests.get(request_id)
        if request is not None:
            self._end(request, reason, now)
        return request is not None

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        self._roster.end(request, reason, now)
        self._isolation.clear(request)

    # ----------------------------------------------------------------- planning

    @property
    def draftable(self) -> list[Request]:
        """The running requests that could take drafts in the next plan, in order of admission."""
        if self._drafts_in_flight or self._isolation.suspect is not None:
            return []
        return draftable(self._roster.running)

    @property
    def _drafts_in_flight(self) -> bool:
        """What the last plan comes to, and so the next one, depends on its result (S14)."""
        return bool(self._in_flight and self._in_flight[-1].num_draft_tokens)

    def schedule(
        self,
        now: float,
        costs: Costs | None = None,
        drafts: Mapping[str, Sequence[int]] = NO_DRAFTS,
    ) -> StepPlan:
        """Makes the next plan. One that is not `to_run` is dropped: nothing can be done now.

        `drafts`: by request, tokens guessed to follow its known ones. Those that cannot be used
        are left out; while some are in flight there is nothing to be done (S14).
        """
        assert len(self._in_flight) < 2, "a chunk can refer to the plan just before alone (S11)"
        roster, num_evictions = self._roster, self._kv.num_evictions
        for request in roster.expire(now):
            self._updates.append(Update(request, None, FinishReason.TIMEOUT))
        self._num_steps += 1
        longest = self._long_prefill if len(roster.requests) > 1 else self._budget
        step = Step(self._num_steps, now, costs, self._budget, longest)
        if (suspect := self._isolation.suspect) is not None:
            self._isolation.plan(step, suspect)
        elif not self._drafts_in_flight:
            self._admission.take_place(step)
            self._continue_running(step)
            self._admission.admit_waiting(step)
            if drafts:
                give_drafts(step, self._kv, roster.running, drafts)
        step.close(
            self._kv,
            len(roster.running),
            len(self._policy),
            self._kv.num_evictions - num_evictions,
        )
        for swap_in in step.swap_ins.values():
            roster.swap.give_back(swap_in.slots)
        if step.plan.to_run:
            self._in_flight.append(step)
        else:  # not to be run, but what making it cost is to be told
            self._kv.poison(step.plan.zero_blocks)
            if step.preemptions:
                self._unreported.append(step.applied(now, discarded_tokens=0))
        return step.plan

    def _continue_running(self, step: Step) -> None:
        chunks, new = step.chunks, tuple.__new__
        running = list(self._roster.running)
        if chunks:
            running = [request for request in running if request not in chunks]
        left = step.budget_left
        for request in running:
            if not left:
                break
            start = request.num_computed_tokens
            if start + 1 >= request.quiet_until_computed:
                step.budget_left = left
                fits = self._one_more_fits(step, request)
                left = step.budget_left
                if not fits:
                    continue
            in_flight = request.num_pending > 0
            chunks[request] = new(
                Chunk,
                (
                    request.request_id,
                    start,
                    () if in_flight else (request.token_ids[start],),
                    request.held.table,
                    request.sample,
                    in_flight,
                    None,
                    0,
                ),
            )
            left -= 1
            request.num_computed_tokens = start + 1
            request.num_pending += 1
        step.budget_left = left

    def _one_more_fits(self, step: Step, request: Request) -> bool:
        """Whether the request is to get one token, whose slot it has by now, and nothing else;
        where it is not, does what is to be done."""
        held, end = request.held, request.num_computed_tokens + 1
        if not request.quiet_until_computed or end >= request.max_total_tokens:
            if held is not None:  # else preempted for one before it
                self._continue(step, request)
            return False
        if end > held.num_slots and not self._kv.extend(request, end):
            self._continue(step, request)
            return False
        if held.promised:
            self._kv.expect(request)
        if end >= held.hash_at:
            request.num_computed_tokens = end
            self._kv.commit(request)
        self._roster.stay_quiet(request)
        return True

    def _continue(self, step: Step, request: Request) -> None:
        """Gives a running request tokens, preempting others for its blocks (S6).

        It may want none: all that it may compute is in flight (S5).
        """
        num_tokens = step.size(request, request.num_computed_tokens)
        if num_tokens <= 0:
            return
        while not self._kv.extend(request, request.num_computed_tokens + num_tokens):
            if self._preemption.for_memory(step, request) is request:
                return
            num_tokens = step.size(request, request.num_computed_tokens)
        self._roster.give(step, request, num_tokens)

    # ----------------------------------------------------------------- applying

    def apply(self, result: StepResult, now: float) -> StepOutcome:
        """Takes the result of the oldest plan in flight."""
        step = self._in_flight.popleft()
        assert result.step == step.number, "results come in the order of their plans"
        assert len(result.token_ids) == len(step.chunks)
        updates, self._updates = self._updates, []
        plain = not (result.errors or result.prompt_logprobs or result.logprobs)
        plain = plain and self._isolation.suspect is None
        drafted, discarded, accepted = step.num_draft_tokens > 0, 0, 0
        without_token = len(updates)
        new = tuple.__new__
        for index, ((request, chunk), token_id) in enumerate(
            zip(step.chunks.items(), result.token_ids, strict=False)
        ):
            known = request.token_ids
            if request.finish_reason is not None:
                discarded += chunk.num_tokens - chunk.num_drafts
                if index in result.errors:  # full blocks can be found though it has ended
                    self._kv.poison(chunk.block_table)
            elif drafted and chunk.num_drafts and token_id is not None:
                tokens = (*result.accepted.get(index, ()), token_id)
                gained = self._take_drafts(request, chunk, tokens, now)
                updates += gained
                accepted += len(gained) - 1
            elif not plain or token_id is None:
                request.num_pending -= chunk.sample is not None
                update = self._advance(request, chunk, result, index, now)
                if update is not None:
                    updates.append(update)
                    without_token += update.token_id is None
            elif (
                len(known) + 1 < request.quiet_until_known
                and token_id not in request.stop_token_ids
            ):
                request.num_pending -= 1
                known.append(token_id)
                updates.append(new(Update, (request, token_id, None, None, None, ())))
            else:
                request.num_pending -= 1
                updates.append(Update(request, token_id, self._append(request, token_id, now)))
        discarded += step.num_draft_tokens - accepted
        for later in self._in_flight:
            later.began_s = now
        num_gained = len(updates) - without_token
        record = step.applied(
            now, discarded_tokens=discarded, accepted_tokens=accepted, output_tokens=num_gained
        )
        return self._outcome(updates, [record])

    def _take_drafts(
        self, request: Request, chunk: Chunk, tokens: Sequence[int], now: float
    ) -> list[Update]:
        """A chunk with drafts sampled these tokens, all but the last of them drafts. Those up to
        one that ends the request are known from here on."""
        num_known = len(chunk.token_ids) - chunk.num_drafts
        assert tokens[:-1] == chunk.token_ids[num_known : num_known + len(tokens) - 1]
        stops = request.stop_token_ids
        num_gained = next((i for i, token in enumerate(tokens, 1) if token in stops), len(tokens))
        request.num_pending -= 1
        request.num_computed_tokens += num_gained - 1
        self._kv.drop_rejected(request)
        if self._policy.charges:  # for one token it was when the plan was made
            self._policy.charge(request, 0, num_gained - 1)
        updates = [
            Update(request, token, self._append(request, token, now))
            for token in tokens[:num_gained]
        ]
        if not request.finished:
            self._kv.expect(request)
        return updates

    def _append(self, request: Request, token_id: int, now: float) -> FinishReason | None:
        """A sampled token is known from here on; why it ends its request, if it does."""
        known = request.token_ids
        known.append(token_id)
        if request.first_token_s is None:
            request.first_token_s = now
        reason = None
        if token_id in request.stop_token_ids:
            reason = FinishReason.STOP
        elif len(known) >= request.max_total_tokens:
            reason = FinishReason.LENGTH
        held = request.held
        if held is not None and held.hash_at <= request.num_computed_tokens:
            self._kv.commit(request)
        self._roster.settle(request)
        if reason is not None:
            self._end(request, reason, now)
        return reason

    def _advance(
        self, request: Request, chunk: Chunk, result: StepResult, index: int, now: float
    ) -> Update | None:
        """What the result says of one chunk, errors and all; None where it changes nothing."""
        if (error := result.errors.get(index)) is not None:
            self._kv.poison(chunk.block_table)
            if request.held is not None:  # it may have grown since
                self._kv.poison(request.held.table)
            self._end(request, FinishReason.ERROR, now)
            return Update(request, None, FinishReason.ERROR, error)
        token_id = result.token_ids[index]
        assert (token_id is not None) == (chunk.sample is not None)
        rows = take_prompt_rows(request, chunk, result.prompt_logprobs.get(index, ()))
        self._isolation.computed(request, chunk.end)
        reason = None
        if token_id is not None:
            reason = self._append(request, token_id, now)
        elif chunk.end >= request.max_total_tokens:
            # With max_tokens 0 there is no token: it ends once the prompt is computed (K3).
            reason = FinishReason.LENGTH
            self._end(request, reason, now)
        if token_id is None and reason is None and not rows:
            return None
        return Update(request, token_id, reason, None, result.logprobs.get(index), rows)

    def fail(self, error: str, now: float) -> StepOutcome:
        """The oldest plan in flight failed: it and all later ones are void (A3).

        Their requests run one at a time from here on; the one that fails alone is at fault.
        """
        dropped, self._in_flight = list(self._in_flight), deque()
        updates, self._updates = self._updates, []
        updates += self._isolation.drop(dropped, error, now)
        for later in dropped[1:]:
            later.began_s = now
        records = [
            step.applied(now, discarded_tokens=step.plan.num_tokens, failed=True)
            for step in dropped
        ]
        return self._outcome(updates, records)

    def flush(self) -> StepOutcome:
        """What ended since the last outcome, where no step is to be run."""
        updates, self._updates = self._updates, []
        return self._outcome(updates, [])

    def _outcome(self, updates: list[Update], records: list[StepRecord]) -> StepOutcome:
        records, self._unreported = [*self._unreported, *records], []
        return StepOutcome(tuple(updates), tuple(records), self._roster.take_ended())

    def check(self) -> None:
        """What must hold between calls (docs/invariants.md); for tests and debugging."""
        self._roster.check(self._width)
