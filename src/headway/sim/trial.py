"""One scheduler under test: everything that may be done to it, and what must hold after each call.

The soak and the property tests drive a `Trial`. docs/invariants.md lists what is checked, by
number (I1, I2, …); whatever is found wrong is an AssertionError.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from headway.clock import VirtualClock
from headway.core.plan import ChunkError, StepPlan, StepResult
from headway.core.request import FinishReason, Request
from headway.errors import QueueFull
from headway.sim.executor import LinearCost, SimulatedExecutor
from headway.sim.ledger import Ledger
from headway.sim.referee import Referee
from headway.sim.situations import Arrival, Setup, compose

__all__ = ["Trial"]

_MOST_STEPS = 5000
"""To the end of all requests of a trial; they have a few thousand tokens at most."""


class Trial:
    """A scheduler with the simulated executor, which answers with a function of what is in the
    KV slots that a chunk reads: a token skipped, repeated or read from another's block is a
    wrong output. Every method checks what must hold after it.

    Attributes:
        setup: what it was made with.
        ledger: the accepted requests, and what was reported of them.
        in_flight: plans submitted and not collected, with their handles; None: it will fail.
        plans: all plans made, where they are kept.
        num_steps: how many of them were run.
    """

    def __init__(self, setup: Setup, *, keep_plans: bool = False) -> None:
        self.setup = setup
        self.ledger = Ledger(setup)
        self.in_flight: deque[tuple[StepPlan, Any]] = deque()
        self.plans: list[StepPlan] | None = [] if keep_plans else None
        self.num_steps = 0
        self._clock = VirtualClock()
        self._kv, _, self._scheduler = compose(setup)
        self._executor = SimulatedExecutor(
            clock=self._clock,
            num_blocks=setup.num_blocks,
            block_size=setup.block_size,
            vocab_size=setup.vocab_size,
            cost=LinearCost(0.5, 0.05),
            verify=True,
        )
        self._referee = Referee(setup, self._kv)
        self._dirty: set[int] = set()
        """Blocks of requests that had NaN logits, until a plan zeroes them."""
        self._salts: dict[int, str | None] = {}
        """Block → salt under which it was written; below 0: swap slots."""

    @property
    def live(self) -> list[str]:
        """The requests that have not ended."""
        return [request.request_id for request in self.ledger.unfinished()]

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    # ----------------------------------------------------------------- what may be done

    def add(self, arrival: Arrival) -> bool:
        """One prompt with all of its samples; False: the queue was full."""
        first = len(self.ledger.cases)
        requests = [self._request(f"r{first + i}", arrival, i) for i in range(arrival.params.n)]
        full = self._is_full_for(requests)
        try:
            self._scheduler.add(requests, self._clock.now())
        except QueueFull:
            assert full, "I15: refused, and there is room"
            requests = []
        else:
            assert not full, "I15: accepted past a limit of the queue"
        for request in requests:
            self.ledger.accept(request)
        self._check()
        return bool(requests)

    def plan(self, *, fails: bool = False) -> StepPlan:
        """Makes the next plan and submits it. `fails`: it will, and those after it with it."""
        drafts = self.ledger.proposals()
        self._referee.before(self.ledger.unfinished(), drafts)
        plan = self._scheduler.schedule(self._clock.now(), self.setup.costs, drafts)
        self.num_steps += plan.to_run
        if self.plans is not None:
            self.plans.append(plan)
        self._check_plan(plan)
        if plan.to_run:
            self._dirty.difference_update(plan.zero_blocks)
            if fails or any(handle is None for _, handle in self.in_flight):
                self._executor.spoil(plan)
                self.in_flight.append((plan, None))
            else:
                self.in_flight.append((plan, self._executor.submit(plan)))
                self._check_readers(plan)
        self._check()
        return plan

    def collect(self, *, nan: bool = False) -> None:
        """Takes the result of the oldest plan. `nan`: its first sample has NaN logits."""
        if not self.in_flight:
            outcome = self._scheduler.flush()
        elif self.in_flight[0][1] is None:
            for plan, _ in self.in_flight:
                self._dirty.update(plan.zero_blocks)
            self.in_flight.clear()
            outcome = self._scheduler.fail("the step failed", self._clock.now())
        else:
            plan, handle = self.in_flight.popleft()
            result = self._executor.collect(handle)
            if nan:
                result = self._with_nan(plan, result)
            outcome = self._scheduler.apply(result, self._clock.now())
            self._check_drafted(plan)
        self.ledger.enter(outcome)
        self._check()

    def step(self, *, fails: bool = False, nan: bool = False) -> None:
        """Takes a result, with as many plans in flight as may be."""
        while len(self.in_flight) < self.setup.depth and self.plan(fails=fails).to_run:
            pass
        self.collect(nan=nan)

    def abort(self, name: str) -> None:
        """Its client went away."""
        assert self._scheduler.finish(name, FinishReason.ABORT, self._clock.now())
        self.ledger.abort(name)
        self._check()

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self._clock.advance(seconds)

    def finish(self) -> None:
        """Runs until nothing is left (I7), and checks what must hold then (I3)."""
        while self.in_flight:
            self.collect()
        for _ in range(_MOST_STEPS):
            if not self.has_work:
                break
            self.step()
        self.ledger.close(self._kv.num_evictions)
        assert self._kv.num_used == 0, "I3: blocks are held, and nobody is there"

    # ---------------------------------------------------------------- what must hold

    def _check(self) -> None:
        """Between calls (I1, I2, I6), and once all have ended (I3)."""
        self._scheduler.check()
        assert self.ledger.live or not self._kv.num_used, "I3: blocks are held by nobody"

    def _check_plan(self, plan: StepPlan) -> None:
        """Of every plan (I4, I7, I13); the referee has those about who goes first."""
        scheduler, setup = self._scheduler, self.setup
        assert plan.num_tokens <= setup.budget, "I4: more tokens than the budget"
        assert max(len(plan.chunks), scheduler.state.num_running) <= setup.width, "I4: too wide"
        num_live = scheduler.state.num_running + scheduler.state.num_waiting
        if setup.threshold and num_live > 1:
            longest = max((chunk.num_tokens - chunk.num_drafts for chunk in plan.chunks), default=0)
            assert longest <= setup.threshold, "I4: a chunk above the threshold"
        if not self.in_flight:
            assert plan.to_run == (num_live > 0), "I7: there is work, and nothing is done"
        if self._dirty:
            used = {block for chunk in plan.chunks for block in chunk.block_table}
            assert not used & self._dirty - {*plan.zero_blocks}, "I13: NaN may be read"
        now = self._clock.now()
        for request in self.ledger.unfinished():
            if request.queue_timeout_s is not None and request.first_scheduled_s is None:
                assert now < request.arrival_s + request.queue_timeout_s, "I15: no timeout"
        self._referee.after(plan, now, guessing=self._guessing)
        self.ledger.plan(plan)

    @property
    def _guessing(self) -> bool:
        """Drafts are in flight."""
        return any(chunk.num_drafts for plan, _ in self.in_flight for chunk in plan.chunks)

    def _check_drafted(self, plan: StepPlan) -> None:
        """What is left of drafts once they were checked: what was accepted (I19)."""
        for chunk in plan.chunks:
            request = self.ledger.cases[chunk.request_id].request
            if chunk.num_drafts and request.held is not None:
                num_computed = request.num_computed_tokens
                assert num_computed + 1 == len(request.token_ids), "I19: rejected, and counted"
                num_blocks = -(-num_computed // self.setup.block_size)
                assert len(request.held.blocks) == num_blocks, "I19: blocks of rejected drafts"

    def _check_readers(self, plan: StepPlan) -> None:
        """What a chunk reads, and what a request that gave way would find now (I10, I17)."""
        size, salts, cases = self.setup.block_size, self._salts, self.ledger.cases
        for block, slot in plan.copies_out:
            salts[~slot] = salts[block]
        for slot, block in plan.copies_in:
            salts[block] = salts[~slot]
        for chunk in plan.chunks:
            own = cases[chunk.request_id].request.cache_salt
            for block in chunk.block_table[chunk.start // size :]:
                salts[block] = own
        for chunk in plan.chunks:
            own = cases[chunk.request_id].request.cache_salt
            read = chunk.block_table[: chunk.start // size]
            assert all(salts[block] == own for block in read), "I17: read under another salt"
        if self.setup.caching:
            for request in self.ledger.unfinished():
                if request.held is None and request.first_scheduled_s is not None:
                    hit = self._kv.lookup(request).blocks
                    found = [token for block in hit for token in self._executor.tokens_in(block)]
                    assert found == request.token_ids[: len(found)], "I10: not computed, but found"

    def _with_nan(self, plan: StepPlan, result: StepResult) -> StepResult:
        """The result, had the first chunk that samples come out as NaN."""
        index = next((i for i, chunk in enumerate(plan.chunks) if chunk.sample is not None), None)
        if index is None:
            return result
        request = self.ledger.cases[plan.chunks[index].request_id].request
        if not request.finished:
            blocks = {*plan.chunks[index].block_table}
            if request.held is not None:
                blocks.update(request.held.blocks)
            for other in self.ledger.unfinished():
                if other is not request and other.held is not None:
                    blocks.difference_update(other.held.blocks)
            self._dirty |= blocks
        tokens = (*result.token_ids[:index], None, *result.token_ids[index + 1 :])
        accepted = {i: drafts for i, drafts in result.accepted.items() if i != index}
        return replace(
            result, token_ids=tokens, accepted=accepted, errors={index: ChunkError("NaN logits")}
        )

    def _is_full_for(self, new: list[Request]) -> bool:
        """Whether a limit of the queue is too small for them now (rule A1)."""
        queued = [r for r in self.ledger.unfinished() if r.first_scheduled_s is None] + new
        num_tokens = sum(request.num_prompt_tokens for request in queued if request.index == 0)
        limits = (self.setup.max_reqs, len(queued)), (self.setup.max_tokens, num_tokens)
        return any(limit is not None and count > limit for limit, count in limits)

    def _request(self, name: str, arrival: Arrival, index: int) -> Request:
        return Request(
            name,
            arrival.prompt,
            arrival.params,
            arrival_s=self._clock.now(),
            priority=arrival.priority,
            tenant=arrival.tenant,
            cache_salt=arrival.salt,
            deadline_s=arrival.deadline_s,
            queue_timeout_s=arrival.queue_timeout_s,
            index=index,
        )
