"""Where every request is: waiting, running or gone, and what a move from one to another entails."""

from __future__ import annotations

import heapq

from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.policy import Policy
from headway.core.prefix_cache import Hit
from headway.core.request import FinishReason, Request, RequestState
from headway.core.step import Step, SwapIn, new_tokens
from headway.core.swap import SwapSpace
from headway.metrics import Admission, EngineState, RequestRecord

__all__ = ["Roster"]

_FEW = 64


class Roster:
    """The requests of one scheduler; every change of place goes through here.

    Attributes:
        requests: all that were accepted and have not ended, by id.
        running: the admitted ones, in order of admission (rule S3).
        policy: holds the waiting ones.
        computing: key of a full block → the running request that is to compute it (rule S15).
    """

    def __init__(self, *, kv: KVCacheManager, swap: SwapSpace, policy: Policy, door: Door) -> None:
        self.kv = kv
        self.swap = swap
        self.policy = policy
        self.door = door
        self.requests: dict[str, Request] = {}
        self.running: dict[Request, None] = {}
        self.computing: dict[int, Request] = {}
        self._ended: list[RequestRecord] = []
        self._expiring: list[tuple[float, int, Request]] = []
        """A heap of when requests expire that wait, or waited, for their first admission."""
        self._num_arrived = 0

    @property
    def state(self) -> EngineState:
        kv, num_running = self.kv, len(self.running)
        return EngineState(num_running, len(self.policy), kv.num_used, kv.num_cached, kv.num_free)

    def cached_tokens(self, request: Request) -> int:
        return len(self.kv.lookup(request).blocks) * self.kv.block_size

    def enter(self, request: Request, now: float) -> None:
        """Accepted: it waits for its first admission."""
        self._num_arrived += 1
        request.sequence = self._num_arrived
        self.requests[request.request_id] = request
        self.policy.add(request, now, self.cached_tokens)
        self.door.enter(request, now)
        if request.queue_timeout_s is not None:
            if len(self._expiring) > 2 * self.door.num_queued_reqs + _FEW:
                self._forget_admitted()
            expires_s = request.arrival_s + request.queue_timeout_s
            heapq.heappush(self._expiring, (expires_s, request.sequence, request))

    def admit(
        self, step: Step, request: Request, hit: Hit, num_tokens: int, *, reserve: bool = False
    ) -> bool:
        """Moves a waiting request to the end of running, with its hits, what was swapped out,
        and blocks for `num_tokens` more; False: too few blocks, and nothing done."""
        num_hit_tokens = len(hit.blocks) * self.kv.block_size
        start = max(num_hit_tokens, request.num_computed_tokens)
        may_read = self.kv.may_read(request)
        if not self.kv.admit(request, hit, start + num_tokens, reserve=reserve):
            return False
        kind = "again"
        if request.state is RequestState.WAITING:
            kind = "first"
            self.door.leave(request, step.time_s, admitted=True)
        self.policy.admitted(request, step.time_s)
        self.policy.remove(request)
        if request.first_scheduled_s is None:
            request.first_scheduled_s = step.time_s
            request.num_cached_tokens = num_hit_tokens
        if request.swapped:
            step.swap_ins[request] = SwapIn(
                request.swapped, len(hit.blocks), request.num_computed_tokens
            )
            request.swapped = ()
        num_looked_up = len(request.token_ids) if may_read else 0
        step.admissions[request.request_id] = Admission(kind, num_looked_up, num_hit_tokens)
        request.move_to(RequestState.RUNNING)
        request.num_computed_tokens = start
        request.admitted_s = step.time_s
        self.running[request] = None
        self.kv.expect(request)
        return True

    def announce(self, request: Request) -> None:
        """From here on others may wait for what an admitted request has still to compute (S15)."""
        if self.kv.enable_prefix_caching:
            first = request.num_computed_tokens // self.kv.block_size
            for key in self.kv.prompt_keys(request)[first:]:
                self.computing.setdefault(key, request)

    def give(self, step: Step, request: Request, num_tokens: int) -> None:
        """Gives an admitted request tokens for which it has the blocks."""
        chunk = step.grant(request, num_tokens)
        self.kv.expect(request)
        self.kv.commit(request)
        if self.policy.charges:
            self.policy.charge(request, *new_tokens(request, chunk))
        self.settle(request)

    def settle(self, request: Request) -> None:
        """Finds out whether from here on a step is one more token to the request, and nothing
        else: then `Request.quiet_until_computed` and `_known` say for how long."""
        if (
            request.held is not None
            and request.num_expected_tokens - request.num_computed_tokens == 1
            and request.num_computed_tokens >= request.num_computed_once
            and request.num_computed_tokens >= request.num_prompt_tokens
            and request.draws_alike
            and not self.policy.charges
        ):
            self.stay_quiet(request)

    def stay_quiet(self, request: Request) -> None:
        """The request decodes: until a block is full, or another is needed, or its last token."""
        held = request.held
        until = min(request.max_total_tokens, held.hash_at)
        request.quiet_until_computed = min(until, held.num_slots + 1)
        request.quiet_until_known = 0 if request.first_token_s is None else until

    def suspend(self, request: Request, state: RequestState, now: float) -> None:
        """A running request that gave its blocks up waits again."""
        self._leave_running(request)
        request.move_to(state)
        self.policy.add(request, now, self.cached_tokens)

    def end(self, request: Request, reason: FinishReason, now: float) -> None:
        if request.state is RequestState.RUNNING:
            self._leave_running(request)
            self.kv.release(request)
            self.policy.ended(request)
        else:
            self.policy.remove(request)
            if request.state is RequestState.WAITING:
                self.door.leave(request, now, admitted=False)
            self.swap.give_back(request.swapped)
            request.swapped = ()
        request.end(reason)
        del self.requests[request.request_id]
        self._ended.append(request.record(now))

    def expire(self, now: float) -> list[Request]:
        """Ends the requests that were never admitted and waited too long (rule A2)."""
        expired = []
        while self._expiring and self._expiring[0][0] <= now:
            _, _, request = heapq.heappop(self._expiring)
            if request.state is RequestState.WAITING:
                self.end(request, FinishReason.TIMEOUT, now)
                expired.append(request)
        return expired

    def _forget_admitted(self) -> None:
        """Who waits no longer cannot expire, and must not be held until it would have."""
        waiting = (item for item in self._expiring if item[2].state is RequestState.WAITING)
        self._expiring = list(waiting)
        heapq.heapify(self._expiring)

    def take_ended(self) -> tuple[RequestRecord, ...]:
        """The records of those that ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    @property
    def has_ended(self) -> bool:
        return bool(self._ended)

    def _leave_running(self, request: Request) -> None:
        del self.running[request]
        if self.computing and self.kv.enable_prefix_caching:
            for key in request.block_keys:
                if self.computing.get(key) is request:
                    del self.computing[key]

    def check(self, width: int) -> None:
        """What must hold between calls (rules S2, S10, K9)."""
        assert len(self.running) <= width
        assert len(self.running) + len(self.policy) == len(self.requests)
        for request in self.running:
            assert request.state is RequestState.RUNNING
            assert request.num_computed_tokens <= request.num_expected_tokens
            assert len(request.token_ids) <= request.max_total_tokens
        waiting = list(self.policy)
        assert len(waiting) == len(self.policy)
        for request in waiting:
            assert request.held is None
            swapped = request.state is RequestState.SWAPPED
            assert swapped or request.state in (RequestState.WAITING, RequestState.PREEMPTED)
            assert swapped == (request.num_computed_tokens > 0) == bool(request.swapped)
        never_admitted = [r for r in waiting if r.state is RequestState.WAITING]
        assert self.door.num_queued_reqs == len(never_admitted)
        assert self.door.num_queued_tokens == sum(
            r.num_prompt_tokens for r in never_admitted if r.index == 0
        )
        self.kv.check(self.running)
        self.swap.check(slot for request in waiting for slot in request.swapped)
