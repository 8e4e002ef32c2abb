"""Who may go first and who must give way, told from outside (docs/invariants.md).

Before and after every plan the referee looks at where each request is, and says whether the
rules S3, S6 to S9, S12 to S14, P1 and P4 allow what changed. It shares no code with the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Chunk, StepPlan
from headway.core.request import Request, RequestState
from headway.sim.situations import Setup

__all__ = ["Referee"]


class _Change(NamedTuple):
    """What one plan did."""

    stayed: list[Request]
    """They ran and run, in order of admission."""
    admitted: list[Request]
    passed: list[Request]
    """They waited and wait."""
    for_memory: list[Request]
    """Preempted because blocks were short."""
    for_priority: list[Request]
    num_for_memory: int
    """The former, and who was admitted and preempted at once."""


class Referee:
    """Call `before` and `after` around the making of each plan."""

    def __init__(self, setup: Setup, kv: KVCacheManager) -> None:
        self._setup = setup
        self._kv = kv
        self._running: list[Request] = []
        """In order of admission."""
        self._waiting: list[Request] = []
        self._reserved: set[Request] = set()
        self._preempted: dict[Request, int] = {}
        self._skips: Counter[Request] = Counter()
        self._drafts: Mapping[str, Sequence[int]] = {}
        self._for_drafts: Counter[Request] = Counter()
        """Blocks that the plan takes for drafts."""

    def before(self, live: Sequence[Request], drafts: Mapping[str, Sequence[int]]) -> None:
        self._drafts = drafts
        running = {r for r in live if r.state is RequestState.RUNNING}
        self._running = [r for r in self._running if r in running]
        assert len(self._running) == len(running)
        self._waiting = [r for r in live if r not in running]
        self._reserved = {r for r in running if r.held.reserved}
        self._preempted = {r: r.num_memory_preemptions for r in live}

    def after(self, plan: StepPlan, now: float, *, guessing: bool) -> None:
        """`guessing`: drafts are in flight."""
        change = self._look(plan)
        self._check_drafts(plan)
        if guessing:
            done = plan.to_run or change.admitted or change.for_memory or change.for_priority
            assert not done, "I19: planned while drafts are in flight"
        elif not any(r.isolated_until for r in self._preempted):  # a failed step: rule A3 decides
            self._check_victims(change)
            if change.for_priority:
                self._check_priority(change)
            if change.admitted:
                self._check_room(change)
                self._check_order(change, now)
            self._check_idle(plan, change, now)
            self._check_left_for_drafts(plan)
        for request in self._preempted:
            assert request.num_memory_preemptions <= self._setup.max_preemptions, "I12: too often"

    def _look(self, plan: StepPlan) -> _Change:
        place = {chunk.request_id: index for index, chunk in enumerate(plan.chunks)}
        stayed = [r for r in self._running if r.state is RequestState.RUNNING]
        served = [place[r.request_id] for r in stayed if r.request_id in place]
        assert served == sorted(served), "I9: the running are not served in order of admission"
        admitted = [r for r in self._waiting if r.state is RequestState.RUNNING]
        admitted.sort(key=lambda r: place.get(r.request_id, len(place)))
        lost = [r for r in self._running if r.held is None and not r.finished]
        more = {r for r, before in self._preempted.items() if r.num_memory_preemptions > before}
        self._running = stayed + admitted
        return _Change(
            stayed=stayed,
            admitted=admitted,
            passed=[r for r in self._waiting if r.held is None and not r.finished],
            for_memory=[r for r in lost if r in more],
            for_priority=[r for r in lost if r not in more],
            num_for_memory=len(more),
        )

    # ---------------------------------------------------------------- who gives way

    def _check_victims(self, change: _Change) -> None:
        """Rules S6, S7, P4."""
        urgent = self._setup.policy == "priority"
        for victim in change.for_memory:
            assert victim not in self._reserved, "I12: its blocks were reserved"
            for other in change.stayed:
                if other in self._reserved:
                    continue
                if urgent:
                    better = (other.priority, other.sequence) < (victim.priority, victim.sequence)
                else:
                    better = (other.admitted_s, other.sequence) <= (victim.admitted_s, 1 << 62)
                assert better, "I12: another should have given way"
        if change.num_for_memory:
            allowed = self._setup.preempt_for_priority and urgent
            assert len(change.admitted) <= allowed, "I12: admitted after a preemption for memory"

    def _check_priority(self, change: _Change) -> None:
        """Rule S12: the first in line alone takes the place of others, the worst ones."""
        assert self._setup.policy == "priority", "I12: preempted for nothing"
        assert self._setup.preempt_for_priority, "I12: preempted for priority"
        first = min((r for r in self._waiting if not r.finished), key=self._urgency)
        came_in = first.held is not None or first.num_memory_preemptions > self._preempted[first]
        assert came_in, "I12: preempted for priority, and the first in line still waits"
        for victim in change.for_priority:
            assert first.priority < self._level(victim), "I12: preempted for one less urgent"
            worst = all(
                (self._level(r), r.sequence) < (self._level(victim), victim.sequence)
                for r in change.stayed
            )
            assert worst, "I12: another ranks worse"

    def _level(self, request: Request) -> float:
        """Of a running request, by the better of its priority and that at its admission."""
        aging_s: float = self._setup.policy_options.get("aging_s", 30.0)
        waited_s = request.admitted_s - request.arrival_s
        return request.priority - (waited_s / aging_s if aging_s else 0.0)

    # ----------------------------------------------------------------- who goes first

    def _check_order(self, change: _Change, now: float) -> None:
        """Rules S9, S13, P1: who ranks before another is not passed by it."""
        if self._setup.caching and self._setup.sharing:
            return  # rule S15 passes over whom it likes
        skipped = [
            sum(self._goes_before(request, other, now) for other in change.admitted)
            for request in change.passed
        ]
        if not self._setup.skip_ahead:
            assert not any(skipped), "I9: passed by one that ranks behind it"
        elif head := self._head(change.passed, now):
            self._skips[head] += skipped[change.passed.index(head)]
            assert self._skips[head] <= self._setup.skip_ahead, "I9: passed too often"

    def _head(self, waiting: Sequence[Request], now: float) -> Request | None:
        """The first, where it can be told."""
        for request in waiting:
            if all(r is request or self._goes_before(request, r, now) for r in waiting):
                return request
        return None

    def _goes_before(self, a: Request, b: Request, now: float) -> bool:
        """Whether `a` is to be admitted before `b`; False both ways where it cannot be told."""
        policy, earlier = self._setup.policy, a.sequence < b.sequence
        if policy == "priority":
            return self._urgency(a) < self._urgency(b)
        if policy == "fair":
            return earlier and a.tenant == b.tenant
        if policy == "fcfs" or (_ran(a) and _ran(b)):
            return earlier
        if _ran(a) or _ran(b):
            return _ran(a)
        return self._is_next(a, b, now)

    def _is_next(self, a: Request, b: Request, now: float) -> bool:
        """The same of two that never ran, under `deadline`, `sjf` or `lpm`."""
        if self._setup.policy == "deadline":
            return self._is_due_before(a, b, now)
        if self._setup.caching:
            return False  # what was cached when they arrived is not known here
        if self._setup.policy == "sjf":
            return self._length(a) < self._length(b)
        return a.sequence < b.sequence

    def _urgency(self, request: Request) -> tuple[float, int]:
        aging_s: float = self._setup.policy_options.get("aging_s", 30.0)
        aged = request.arrival_s / aging_s if aging_s else 0.0
        return request.priority + aged, request.sequence

    def _length(self, request: Request) -> tuple[float, int]:
        aging: float = self._setup.policy_options.get("aging_tokens_per_s", 100.0)
        return request.num_prompt_tokens + request.arrival_s * aging, request.sequence

    def _is_due_before(self, a: Request, b: Request, now: float) -> bool:
        due_a, due_b = self._due(a), self._due(b)
        if (due_a < now) != (due_b < now):
            return False  # the late have turns of their own
        late = due_a < now
        return a.sequence < b.sequence if late else (due_a, a.sequence) < (due_b, b.sequence)

    def _due(self, request: Request) -> float:
        default_s: float = self._setup.policy_options.get("default_s", 10.0)
        within_s = default_s if request.deadline_s is None else request.deadline_s
        return request.arrival_s + within_s

    # -------------------------------------------------------------------- who has room

    def _check_room(self, change: _Change) -> None:
        """Rules K7, K8, P4: room was left for those that were there before."""
        setup = self._setup
        for request in change.admitted:
            often = request.num_memory_preemptions >= setup.max_preemptions
            assert request.held.reserved == often, "I12: admitted without its reservation"
        if setup.policy == "priority" and setup.preempt_for_priority:
            return  # others took blocks after it came in
        spare = self._spare(in_flight=False)
        least = self._kv.watermark_blocks if len(self._running) > 1 else 0
        assert spare >= least, "I8: admitted without room"

    def _check_idle(self, plan: StepPlan, change: _Change, now: float) -> None:
        """Rule S8: who has a slot, tokens and blocks is not kept waiting."""
        setup = self._setup
        left = setup.budget - plan.num_tokens + sum(chunk.num_drafts for chunk in plan.chunks)
        full = len(self._running) >= setup.width or not left
        if setup.caching or full or change.num_for_memory or not change.passed:
            return
        spare = self._spare(in_flight=True) - (self._kv.watermark_blocks if self._running else 0)
        head = self._head(change.passed, now)
        fits = [
            self._wants(request, left, spare)
            for request in ([head] if head is not None else change.passed)
        ]
        assert not all(fits), "I8: nothing is in its way, and it waits"

    def _wants(self, request: Request, left: int, spare: int) -> bool:
        """Whether it fits what is left of the budget and into the spare blocks."""
        setup = self._setup
        end = request.num_tokens_to_compute
        chunk = end - request.num_computed_tokens
        if not setup.chunked and chunk > left:
            return False
        if request.num_memory_preemptions >= setup.max_preemptions:
            end = request.num_wanted_tokens
        elif not setup.reserve:
            end = request.num_computed_tokens + min(chunk, left, setup.threshold or left)
        return self._blocks(end) <= spare

    # ------------------------------------------------------------------------- drafts

    def _check_drafts(self, plan: StepPlan) -> None:
        """Rule S14: of what was proposed, for whom it may be, in blocks that nobody lacks."""
        self._for_drafts.clear()
        for chunk in plan.chunks:
            if not chunk.num_drafts:
                continue
            request = self._of(chunk)
            assert self._may_have_drafts(request, chunk), "I19: drafts where none may be"
            given = chunk.token_ids[-chunk.num_drafts :]
            assert given == (*self._drafts[chunk.request_id][: len(given)],), "I19: other drafts"
            assert chunk.end - chunk.num_drafts == len(request.token_ids), "I19: drafts elsewhere"
            assert len(chunk.block_table) <= self._blocks(chunk.end), "I19: more than it needs"
            num_blocks = self._blocks(chunk.end) - self._blocks(len(request.token_ids))
            if num_blocks:
                self._for_drafts[request] = num_blocks
        if self._for_drafts:
            past = any(len(r.held.blocks) > self._promised(r) for r in self._for_drafts)
            least = self._kv.watermark_blocks if past else 0
            assert self._uncounted() >= least, "I19: drafts in blocks that others count on"

    def _check_left_for_drafts(self, plan: StepPlan) -> None:
        """Rule S14: nothing that could be used for drafts is left."""
        if plan.num_tokens == self._setup.budget:
            return
        spare = self._uncounted()
        for chunk in plan.chunks:
            request = self._of(chunk)
            left = min(
                len(self._drafts.get(chunk.request_id, ())) - chunk.num_drafts,
                request.max_total_tokens - 1 - chunk.end,
            )
            if left <= 0 or not self._may_have_drafts(request, chunk):
                continue
            assert chunk.end == request.held.num_slots, "I19: there was room for a draft"
            own = self._promised(request) > len(request.held.blocks)
            least = 0 if own else self._kv.watermark_blocks + 1
            assert spare < least, "I19: there was a block for a draft"

    def _may_have_drafts(self, request: Request, chunk: Chunk) -> bool:
        """It samples, its tokens are drawn alike, and it wants to know nothing else of them."""
        params = request.params
        alike = not params.min_tokens and params.logprobs is None
        samples = chunk.sample is not None and not chunk.follows_in_flight
        return samples and chunk.prompt_rows is None and alike

    def _of(self, chunk: Chunk) -> Request:
        return next(r for r in self._running if r.request_id == chunk.request_id)

    def _promised(self, request: Request) -> int:
        """Blocks for its known tokens and the one in flight, or, reserved, for all."""
        wanted, by_now = request.num_wanted_tokens, request.num_tokens_to_compute
        return self._blocks(wanted if request.held.reserved else by_now)

    def _uncounted(self) -> int:
        """Blocks that nobody holds, and no running request has coming, reserved for it or not."""
        free = self._kv.num_blocks - self._kv.num_used
        return free - sum(max(0, self._promised(r) - len(r.held.blocks)) for r in self._running)

    def _spare(self, *, in_flight: bool) -> int:
        """Blocks that nobody holds and that no running request has coming for its known tokens,
        and for those `in_flight`; had there been no drafts in this plan."""
        coming = sum(self._coming(request, in_flight) for request in self._running)
        free = self._kv.num_blocks - self._kv.num_used + self._for_drafts.total()
        return free - coming

    def _coming(self, request: Request, in_flight: bool) -> int:
        if request.held.reserved:
            end = request.num_wanted_tokens
        elif self._setup.reserve:
            end = request.num_tokens_to_compute if in_flight else len(request.token_ids)
        else:
            return 0
        num_held = len(request.held.blocks) - self._for_drafts[request]
        return max(0, self._blocks(end) - num_held)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._setup.block_size)


def _ran(request: Request) -> bool:
    return request.first_scheduled_s is not None
