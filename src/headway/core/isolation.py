"""After a failed step: its requests run one at a time, until the one at fault is known (A3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headway.core.admission import Admission
from headway.core.plan import ChunkError
from headway.core.preemption import Preemption
from headway.core.request import FinishReason, Request, RequestState
from headway.core.roster import Roster
from headway.core.step import Step, Update

__all__ = ["Isolation"]


class Isolation:
    """The suspects of failed steps, in the order in which they will run alone."""

    def __init__(self, roster: Roster, preemption: Preemption, admission: Admission) -> None:
        self._roster = roster
        self._kv = roster.kv
        self._preemption = preemption
        self._admission = admission
        self._suspects: deque[Request] = deque()

    @property
    def suspect(self) -> Request | None:
        """Who is to run alone now; None: the engine runs as usual."""
        return self._suspects[0] if self._suspects else None

    def plan(self, step: Step, request: Request) -> None:
        """This request and nothing else, whoever must give way."""
        step.waiting_for = "isolated"
        while request.state is not RequestState.RUNNING:
            if self._admission.admit_alone(step, request):
                return
            self._preemption.for_memory(step, request, spare=True)
        num_tokens = step.size(request, request.num_computed_tokens)
        while not self._kv.extend(request, request.num_computed_tokens + num_tokens):
            self._preemption.for_memory(step, request, spare=True)
        if num_tokens:
            self._roster.give(step, request, num_tokens)

    def drop(self, dropped: Sequence[Step], error: str, now: float) -> list[Update]:
        """Makes all of these plans void; ends the request that failed alone, if one did."""
        suspect = self.suspect
        for step in dropped:
            self._kv.poison(step.plan.zero_blocks)
            for chunk in step.plan.chunks:
                self._kv.forget_written(chunk.block_table, chunk.start, chunk.end)
            for _, block in step.plan.copies_in:
                self._kv.forget(block)
        for step in dropped:
            for request, chunk in step.chunks.items():
                if not request.finished:
                    request.num_pending -= chunk.sample is not None
                    self._withdraw(request, chunk.end - chunk.num_drafts, now)
            for request in step.swapped:
                if not request.finished:
                    self._withdraw(request, request.num_computed_tokens, now)
        if suspect is None or list(dropped[0].chunks) != [suspect] or suspect.finished:
            return []
        self.clear(suspect)
        self._roster.end(suspect, FinishReason.ERROR, now)
        return [Update(suspect, None, FinishReason.ERROR, ChunkError(error))]

    def clear(self, request: Request) -> None:
        """It ended."""
        if request in self._suspects:
            self._suspects.remove(request)

    def computed(self, request: Request, end: int) -> None:
        """A chunk up to `end` has run: the suspect is cleared once past where it stood."""
        if self._suspects and self._suspects[0] is request and end >= request.isolated_until:
            self._suspects.popleft()

    def _withdraw(self, request: Request, end: int, now: float) -> None:
        """It waits again, computed from the start, and is suspect."""
        if request in self._suspects:
            request.isolated_until = max(request.isolated_until, end)
        else:
            request.isolated_until = end
            self._suspects.append(request)
        request.num_computed_once = max(request.num_computed_once, request.num_computed_tokens)
        if request.state is RequestState.RUNNING:
            self._kv.release(request)
            request.num_computed_tokens = 0
            self._roster.suspend(request, RequestState.PREEMPTED, now)
        elif request.state is RequestState.SWAPPED:
            self._roster.swap.give_back(request.swapped)
            request.swapped = ()
            request.num_computed_tokens = 0
            request.move_to(RequestState.PREEMPTED)
