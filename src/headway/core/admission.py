"""Who of the waiting is let in to run, and why the others are not (rules S7 to S9, S12, S15)."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.policy import PriorityPolicy
from headway.core.preemption import Preemption
from headway.core.prefix_cache import Hit
from headway.core.request import Request
from headway.core.roster import Roster
from headway.core.step import Step

__all__ = ["Admission"]

_MOST_PREFIX_WAITS = 8
_SKIP_WINDOW = 32
"""Requests behind a blocked head that are looked at in a step."""


class Admission:
    """Moves waiting requests to running.

    Args:
        width: most requests that run at once.
        chunked: a request may begin with a part of its prompt.
        max_skip_ahead: requests that may go before a head that lacks blocks, over its whole wait.
        share_prefixes: a request waits while a running one computes a prefix that it can use.
        preempt_for_priority: a more urgent request takes the place of a running one.
    """

    def __init__(
        self,
        roster: Roster,
        preemption: Preemption,
        *,
        width: int,
        chunked: bool,
        max_skip_ahead: int,
        share_prefixes: bool,
        preempt_for_priority: bool,
    ) -> None:
        self._roster = roster
        self._kv = roster.kv
        self._preemption = preemption
        self._width = width
        self._chunked = chunked
        self._max_skip_ahead = max_skip_ahead
        self._share_prefixes = share_prefixes
        self._for_priority = preempt_for_priority and isinstance(roster.policy, PriorityPolicy)

    def take_place(self, step: Step) -> None:
        """The first phase: the most urgent request may take the place of running ones (S12).

        It is admitted here, and gets its tokens with the running ones, after them.
        """
        roster = self._roster
        if not self._for_priority or not roster.running:
            return
        request = next(roster.policy.order(step.time_s, roster.cached_tokens), None)
        if request is None:
            return
        hit = self._kv.lookup(request)
        if self._prefix_is_coming(request, hit, roster.running):
            return
        reserve = self._preemption.needs_reservation(request)
        start = self._start(request, hit)
        num_tokens = step.size(request, start)
        spare = self._kv.spare(request, hit, start + num_tokens, reserve=reserve)
        no_slot = len(roster.running) >= self._width
        lacking = self._kv.watermark_blocks - spare
        if (lacking > 0 or no_slot) and self._preemption.for_priority(
            step, request, hit, lacking, slot=no_slot
        ):
            admitted = roster.admit(step, request, hit, num_tokens, reserve=reserve)
            assert admitted, "enough was freed"
            if not self._chunked:
                roster.give(step, request, num_tokens)
            roster.announce(request)

    def admit_alone(self, step: Step, request: Request) -> bool:
        """Admits it with its first tokens, whatever else it may need; False: there is no slot,
        or there are too few blocks."""
        if len(self._roster.running) >= self._width:
            return False
        hit = self._kv.lookup(request)
        start = self._start(request, hit)
        num_tokens = step.size(request, start)
        reserve = self._preemption.needs_reservation(request)
        if reserve and self._kv.spare(request, hit, start + num_tokens, reserve=True) < 0:
            return False
        if not self._roster.admit(step, request, hit, num_tokens, reserve=reserve):
            return False
        self._roster.give(step, request, num_tokens)
        self._roster.announce(request)
        return True

    def admit_waiting(self, step: Step) -> None:
        """The last phase: who fits comes to run, in the policy's order."""
        roster, head = self._roster, None
        looked_at = 0
        for request in roster.policy.order(step.time_s, roster.cached_tokens):
            if request in step.victims:
                step.waiting_for = step.waiting_for or "preempted"
                continue
            if reason := self._closed_to_all(step):
                step.waiting_for = step.waiting_for or reason
                break
            hit = self._kv.lookup(request)
            if self._prefix_is_coming(request, hit, step.chunks):
                self._count_prefix_wait(request, hit)
                step.waiting_for = step.waiting_for or "prefix"
                continue
            reason = self._admit(step, request, hit)
            if not reason:
                if head is not None:
                    head.num_skips += 1
            elif head is None:
                head, step.waiting_for = request, reason
            looked_at += head is not None
            if head is not None and (
                head.num_skips >= self._max_skip_ahead
                or step.waiting_for == "budget"
                or looked_at > _SKIP_WINDOW
            ):
                break

    def _admit(self, step: Step, request: Request, hit: Hit) -> str:
        """Admits the request and gives it its first tokens, or says what holds it up (S8)."""
        start = self._start(request, hit)
        num_tokens = step.size(request, start)
        if num_tokens < request.num_tokens_to_compute - start and not self._chunked:
            return "budget"
        reserve = self._preemption.needs_reservation(request)
        idle = not self._roster.running
        end = start + num_tokens
        if reason := self._kv.held_up_by(request, hit, end, idle=idle, reserve=reserve):
            return reason
        admitted = self._roster.admit(step, request, hit, num_tokens, reserve=reserve)
        assert admitted, "what nothing holds up has its blocks"
        self._roster.give(step, request, num_tokens)
        self._roster.announce(request)
        return ""

    def _closed_to_all(self, step: Step) -> str:
        """Why nobody at all can be admitted now; empty if somebody might (S7, S8)."""
        if "memory" in step.preemptions:
            return "preempted"
        if len(self._roster.running) >= self._width:
            return "width"
        return "" if step.budget_left else "budget"

    def _start(self, request: Request, hit: Hit) -> int:
        """Tokens that it need not compute: found in the cache, or swapped out."""
        return max(len(hit.blocks) * self._kv.block_size, request.num_computed_tokens)

    def _prefix_is_coming(self, request: Request, hit: Hit, computing: Collection[Request]) -> bool:
        """A request among `computing` is about to compute the next block that this one lacks."""
        if not self._share_prefixes or request.num_prefix_waits >= _MOST_PREFIX_WAITS:
            return False
        key = self._kv.next_key(request, hit)
        if key is None:
            return False
        other = self._roster.computing.get(key)
        if other is None or other not in computing:
            return False
        index = len(hit.blocks)
        return other.block_tokens[index : index + 1] == request.block_tokens[index : index + 1]

    def _count_prefix_wait(self, request: Request, hit: Hit) -> None:
        """A step in which no further block came that it can use is one of its few."""
        if len(hit.blocks) > request.num_prefix_blocks:
            request.num_prefix_blocks = len(hit.blocks)
        else:
            request.num_prefix_waits += 1
