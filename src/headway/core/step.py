"""A step from its first grant to its outcome. The scheduler fills it; nobody else changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Chunk, ChunkError, PromptRows, StepPlan, TokenLogprobs
from headway.core.request import FinishReason, Request
from headway.metrics import Admission, Costs, RequestRecord, StepRecord

__all__ = [
    "WAITING_REASONS",
    "Step",
    "StepOutcome",
    "SwapIn",
    "Update",
    "new_tokens",
    "take_prompt_rows",
]


WAITING_REASONS = (
    *("width", "budget", "blocks", "watermark", "preempted", "prefix", "isolated", "new"),
)
"""What may hold up the head of the queue (docs/design/scheduling.md, M). `new` is no step's: it has
come since the last plan."""


class SwapIn(NamedTuple):
    """What is copied back for a request."""

    slots: tuple[int, ...]
    """Of all its blocks that hold computed tokens."""
    num_hits: int
    """Of those blocks, how many the prefix cache has: they are not copied."""
    num_tokens: int
    """That were computed when it was swapped out."""


class Step:
    """Lives from its first grant until its result is applied.

    Attributes:
        began_s: when the executor had nothing else to do but this step (rule S11).
        chunks: what each request is given, in the order of the plan.
        budget_left: tokens that can still be given.
        longest_chunk: most tokens for one request (rule S4).
        waiting_for: what keeps the head of the queue waiting; see `StepRecord.waiting`.
        swap_ins: requests that were swapped out and are admitted.
        swapped: requests whose blocks the plan copies out or in (rule P2).
        victims: who was preempted.
        num_draft_tokens: of what was given, drafts (rule S14).
    """

    def __init__(
        self, number: int, time_s: float, costs: Costs | None, budget: int, longest_chunk: int
    ) -> None:
        self.number = number
        self.time_s = self.began_s = time_s
        self.costs = costs
        self.budget = self.budget_left = budget
        self.longest_chunk = longest_chunk
        self.chunks: dict[Request, Chunk] = {}
        self.admissions: dict[str, Admission] = {}
        self.preemptions: dict[str, int] = {}
        self.waiting_for = ""
        self.copies_out: list[tuple[int, int]] = []
        self.swap_ins: dict[Request, SwapIn] = {}
        self.swapped: list[Request] = []
        self.victims: set[Request] = set()
        self.recomputed_tokens = 0
        self.prompt_tokens = 0
        self.num_draft_tokens = 0
        self.plan: StepPlan
        self.figures: dict[str, Any]
        """Of the record, what is known when the plan is closed."""

    def size(self, request: Request, start: int) -> int:
        """How many tokens from `start` on the request may be given (S4)."""
        wanted = request.num_tokens_to_compute - start
        return min(wanted, self.longest_chunk, self.budget_left)

    def grant(self, request: Request, num_tokens: int) -> Chunk:
        """Gives an admitted request its next tokens, for which it has the blocks.

        Computed advances now, so that the next plan can be made while this one runs (S11).
        """
        start, known = request.num_computed_tokens, request.token_ids
        end = start + num_tokens
        token_ids = tuple(known[start:end])
        samples = end == len(known) + request.num_pending < request.max_total_tokens
        chunk = Chunk(
            request.request_id,
            start,
            token_ids,
            request.held.table,
            request.sample_at(end) if samples else None,
            len(token_ids) < num_tokens,
            _prompt_rows(request, start, end) if request.wants_prompt_rows else None,
        )
        self.chunks[request] = chunk
        self.budget_left -= num_tokens
        self.recomputed_tokens += _recomputed(request, chunk)
        self.prompt_tokens += new_tokens(request, chunk)[0]
        request.num_computed_tokens = end
        request.num_pending += samples
        return chunk

    def add_drafts(self, request: Request, drafts: Sequence[int]) -> None:
        """Lengthens what the request was given; it has the blocks (rule S14)."""
        chunk = self.chunks[request]
        self.chunks[request] = chunk._replace(
            token_ids=(*chunk.token_ids, *drafts),
            block_table=request.held.table,
            num_drafts=len(drafts),
        )
        self.budget_left -= len(drafts)
        self.num_draft_tokens += len(drafts)

    def take_back(self, request: Request) -> Chunk | None:
        """What the request was given in this step is given to nobody; None: it was nothing."""
        chunk = self.chunks.pop(request, None)
        if chunk is not None:
            self.budget_left += chunk.num_tokens
            self.recomputed_tokens -= _recomputed(request, chunk)
            self.prompt_tokens -= new_tokens(request, chunk)[0]
            request.num_computed_tokens = chunk.start
            request.num_pending -= chunk.sample is not None
        return chunk

    def close(
        self, kv: KVCacheManager, num_running: int, num_waiting: int, num_evictions: int
    ) -> None:
        """Fixes the plan, and the record as far as it is known."""
        copies_in = tuple(
            pair
            for request, swap_in in self.swap_ins.items()
            for pair in zip(
                swap_in.slots[swap_in.num_hits :],
                request.held.blocks[swap_in.num_hits : len(swap_in.slots)],
                strict=True,
            )
        )
        self.swapped += self.swap_ins
        self.plan = StepPlan(
            self.number,
            tuple(self.chunks.values()),
            kv.take_blocks_to_zero(),
            tuple(self.copies_out),
            copies_in,
        )
        self.figures = {
            "num_running": num_running,
            "waiting": {self.waiting_for: num_waiting} if num_waiting else {},
            "blocks_used": kv.num_used,
            "blocks_cached": kv.num_cached,
            "blocks_free": kv.num_free,
            "evictions": num_evictions,
        }

    def applied(
        self,
        now: float,
        *,
        discarded_tokens: int,
        accepted_tokens: int = 0,
        output_tokens: int = 0,
        failed: bool = False,
    ) -> StepRecord:
        """The record, complete. `accepted_tokens`: drafts that were; `output_tokens`: what
        requests gained."""
        return StepRecord(
            step=self.number,
            time_s=self.time_s,
            duration_s=now - self.began_s,
            costs=self.costs,
            chunks=self.plan.chunks,
            num_tokens=self.budget - self.budget_left,
            admissions=self.admissions,
            budget=self.budget,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            swapped_out_blocks=len(self.plan.copies_out),
            swapped_in_blocks=len(self.plan.copies_in),
            discarded_tokens=discarded_tokens,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=accepted_tokens,
            num_prompt_tokens=self.prompt_tokens,
            num_output_tokens=output_tokens,
            failed=failed,
            **self.figures,
        )


class Update(NamedTuple):
    """What one step did to one request."""

    request: Request
    token_id: int | None
    """The output token it gained, if any."""
    finish_reason: FinishReason | None
    error: ChunkError | None = None
    logprobs: TokenLogprobs | None = None
    """Of the token, where the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the next prompt tokens, from the second on, each given once (rule K3)."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What applying a result, or dropping failed plans, came to."""

    updates: tuple[Update, ...]
    records: tuple[StepRecord, ...]
    """One; more where several plans were dropped."""
    ended: tuple[RequestRecord, ...]
    """Every request that ended since the outcome before, by whatever cause."""


def new_tokens(request: Request, chunk: Chunk) -> tuple[int, int]:
    """Prompt tokens that the chunk computes for the first time, and output tokens it samples."""
    first = max(chunk.start, request.num_computed_once)
    return max(0, min(chunk.end, request.num_prompt_tokens) - first), chunk.sample is not None


def take_prompt_rows(
    request: Request, chunk: Chunk, rows: tuple[TokenLogprobs, ...]
) -> tuple[TokenLogprobs, ...]:
    """Those of a chunk's rows that no chunk before a preemption gave already (rule K3)."""
    if chunk.prompt_rows is None:
        return ()
    assert len(rows) == len(chunk.prompt_rows.token_ids)
    num_known = request.num_prompt_rows - (chunk.prompt_rows.first - 1)
    assert num_known >= 0, "chunks come in the order of the prompt"
    rows = rows[num_known:]
    request.num_prompt_rows += len(rows)
    return rows


def _prompt_rows(request: Request, start: int, end: int) -> PromptRows | None:
    """What a chunk can tell of the prompt and was not told yet (rule K3)."""
    assert request.params.prompt_logprobs is not None
    first = max(start, request.num_prompt_rows) + 1
    token_ids = tuple(request.token_ids[first : min(end + 1, request.num_prompt_tokens)])
    if not token_ids:
        return None
    return PromptRows(first, token_ids, request.params.prompt_logprobs)


def _recomputed(request: Request, chunk: Chunk) -> int:
    """Tokens of the chunk that had been computed before a preemption (P5)."""
    return max(0, min(chunk.end, request.num_computed_once) - chunk.start)
