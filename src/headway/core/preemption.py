"""How running requests give way: to others for memory, to more urgent ones for their place."""

from __future__ import annotations

from typing import Literal

from headway.core.policy import PriorityPolicy
from headway.core.prefix_cache import Hit
from headway.core.request import Request, RequestState
from headway.core.roster import Roster
from headway.core.step import Step, new_tokens

__all__ = ["Mode", "Preemption"]

Mode = Literal["recompute", "swap", "auto"]


class Preemption:
    """Takes places and blocks from running requests (rules S6, S12, P1 to P4).

    Args:
        mode: `recompute` drops the blocks; `swap` copies them to the swap space where that has
            room; `auto` does what is estimated to cost less for that victim now.
        max_preemptions: after that many for memory a request is admitted only with all the
            blocks it may ever need, and is no victim for memory any more.
    """

    def __init__(self, roster: Roster, *, mode: Mode, max_preemptions: int) -> None:
        self._roster = roster
        self._kv = roster.kv
        self._mode = mode
        self._max_preemptions = max_preemptions

    def needs_reservation(self, request: Request) -> bool:
        return request.num_memory_preemptions >= self._max_preemptions

    def for_memory(self, step: Step, request: Request, *, spare: bool = False) -> Request:
        """Preempts a victim so that `request` may get blocks; returns who that was.

        `spare`: not the request itself, and whoever else it takes (rule A3); without, one with
        a reservation never gives way, and the request itself does if all others have one.
        """
        running = self._roster.running
        if spare:
            others = [other for other in running if other is not request]
            assert others, "rule S10: every accepted request fits alone"
        else:
            others = [r for r in running if r is request or not r.held.reserved]
        victim = self._roster.policy.victim(others)
        victim.num_memory_preemptions += not spare
        self.preempt(step, victim, "memory")
        return victim

    def preempt(self, step: Step, victim: Request, cause: str) -> None:
        """The victim's blocks go; its output and its place in line stay (rule P1)."""
        chunk = step.take_back(victim)
        policy = self._roster.policy
        if chunk is not None and policy.charges:
            num_prompt, num_output = new_tokens(victim, chunk)
            policy.charge(victim, -num_prompt, -num_output)
        num_valid = victim.num_computed_tokens
        victim.num_computed_once = max(victim.num_computed_once, num_valid)
        state = RequestState.SWAPPED
        swap_in = step.swap_ins.pop(victim, None)
        if swap_in is not None:  # admitted in this very step: what was to be copied back stays
            victim.swapped = swap_in.slots
            victim.num_computed_tokens = swap_in.num_tokens
            num_valid = swap_in.num_hits * self._kv.block_size
        elif not self._swap_out(step, victim):
            state = RequestState.PREEMPTED
            victim.num_computed_tokens = 0
        self._kv.release(victim, num_valid_tokens=num_valid)
        victim.num_preemptions += 1
        step.preemptions[cause] = step.preemptions.get(cause, 0) + 1
        step.victims.add(victim)
        self._roster.suspend(victim, state, step.time_s)

    def _swap_out(self, step: Step, victim: Request) -> bool:
        """False: it is to be recomputed."""
        num_blocks = -(-victim.num_computed_tokens // self._kv.block_size)
        if not num_blocks or not self._swap_is_cheaper(step, victim, num_blocks):
            return False
        slots = self._roster.swap.take(num_blocks)
        if slots is None:
            return False
        victim.swapped = slots
        step.copies_out += zip(victim.held.blocks, slots, strict=False)
        step.swapped.append(victim)
        return True

    def _swap_is_cheaper(self, step: Step, victim: Request, num_blocks: int) -> bool:
        """Rule P3. Of what is hashed only blocks that others hold too surely stay to be found:
        memory is short, so the others are about to be evicted."""
        if self._mode != "auto":
            return self._mode == "swap"
        if step.costs is None:
            return False
        num_tokens = victim.num_computed_tokens - self._kv.num_shared_tokens(victim)
        recompute_s = num_tokens * step.costs.prefill_token_s
        return 2 * num_blocks * step.costs.block_copy_s < recompute_s

    def for_priority(
        self, step: Step, request: Request, hit: Hit, num_needed: int, *, slot: bool
    ) -> bool:
        """Preempts the worst of those that `request` outranks until it has a slot and blocks;
        nobody, and False, where that would not be enough (rule S12).

        Args:
            step: the one that is being planned.
            request: the one that is to come in.
            hit: of `request`.
            num_needed: blocks that it lacks; negative or 0: none.
            slot: whether it lacks a slot.
        """
        policy = self._roster.policy
        assert isinstance(policy, PriorityPolicy)
        victims: list[Request] = []
        for victim in policy.worst_first(list(self._roster.running)):
            if num_needed <= 0 and not slot:
                break
            if not policy.outranks(request, victim):
                return False
            victims.append(victim)
            num_needed -= self._kv.num_freed_by(victim, hit)
            slot = False
        if num_needed > 0 or slot:
            return False
        for victim in victims:
            self.preempt(step, victim, "priority")
        return True
