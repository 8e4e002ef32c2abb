"""A step from its first grant to its outcome. The scheduler fills it; nobody else changes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Chunk, PromptRows, Sample, StepPlan, TokenLogprobs
from headway.core.request import FinishReason, Request
from headway.metrics import BatchEntry, RequestRecord, StepRecord

__all__ = ["Grant", "Step", "StepOutcome", "Update", "take_prompt_rows"]


@dataclass(slots=True)
class Grant:
    """The tokens that one request is given in one step."""

    request: Request
    start: int
    num_tokens: int
    admission: str = ""
    lookup_tokens: int = 0
    hit_tokens: int = 0
    samples: bool = field(init=False)
    """Whether a token is sampled at its end."""

    def __post_init__(self) -> None:
        request = self.request
        self.samples = self.end == request.num_expected_tokens < request.max_total_tokens

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    def chunk(self, table: tuple[int, ...]) -> Chunk:
        request = self.request
        known = tuple(request.token_ids[self.start : self.end])
        sample = self._sample() if self.samples else None
        follows = len(known) < self.num_tokens
        rows = self._prompt_rows() if request.wants_prompt_rows else None
        return Chunk(request.request_id, self.start, known, table, sample, follows, rows)

    def _sample(self) -> Sample:
        request, params = self.request, self.request.params
        too_few = self.end - request.num_prompt_tokens < params.min_tokens
        output: tuple[int, ...] = ()
        if request.bad_words or params.penalises_output:
            output = tuple(request.token_ids[request.num_prompt_tokens :])
        return Sample(
            params,
            request.seed,
            request.index,
            self.end,
            tuple(sorted(request.stop_token_ids)) if too_few else (),
            request.bad_words,
            request.penalised_prompt,
            output,
        )

    def _prompt_rows(self) -> PromptRows | None:
        """What the chunk can tell of the prompt and was not told yet (rule K3)."""
        request = self.request
        assert request.params.prompt_logprobs is not None
        first = max(self.start, request.num_prompt_rows) + 1
        token_ids = tuple(request.token_ids[first : min(self.end + 1, request.num_prompt_tokens)])
        if not token_ids:
            return None
        return PromptRows(first, token_ids, request.params.prompt_logprobs)

    def entry(self) -> BatchEntry:
        return BatchEntry(
            self.request.request_id,
            self.start,
            self.num_tokens,
            self.admission,
            self.lookup_tokens,
            self.hit_tokens,
        )


@dataclass(slots=True)
class Step:
    """Lives from its first grant until its result is applied. The scheduler fills it."""

    number: int
    time_s: float
    budget: int
    evictions_before: int
    budget_left: int = field(init=False)
    grants: dict[str, Grant] = field(default_factory=dict)
    preemptions: Counter[str] = field(default_factory=Counter)
    waiting_for: str = ""
    """What keeps the head of the queue waiting; see `StepRecord.waiting`."""
    plan: StepPlan = field(init=False)
    record: StepRecord = field(init=False)

    def __post_init__(self) -> None:
        self.budget_left = self.budget

    def close(self, kv: KVCacheManager, num_running: int, num_waiting: int) -> None:
        """Fixes the plan, and the record as far as it is known."""
        grants = self.grants.values()
        self.plan = StepPlan(
            self.number,
            tuple(grant.chunk(kv.table(grant.request)) for grant in grants),
            kv.take_blocks_to_zero(),
        )
        self.record = StepRecord(
            step=self.number,
            time_s=self.time_s,
            duration_s=0.0,
            batch=tuple(grant.entry() for grant in grants),
            budget=self.budget,
            num_running=num_running,
            waiting={self.waiting_for: num_waiting} if num_waiting else {},
            blocks_used=kv.num_used,
            blocks_cached=kv.num_cached,
            blocks_free=kv.num_free,
            evictions=kv.num_evictions - self.evictions_before,
            preemptions=dict(self.preemptions),
            recomputed_tokens=sum(_recomputed(grant) for grant in grants),
            discarded_tokens=0,
        )

    def applied(self, now: float, *, discarded_tokens: int, failed: bool = False) -> StepRecord:
        """The record, complete."""
        return replace(
            self.record,
            duration_s=now - self.time_s,
            discarded_tokens=discarded_tokens,
            failed=failed,
        )


@dataclass(frozen=True, slots=True)
class Update:
    """What one step did to one request."""

    request: Request
    token_id: int | None
    """The output token it gained, if any."""
    finish_reason: FinishReason | None
    error: str | None = None
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


def _recomputed(grant: Grant) -> int:
    """Tokens of the grant that had been computed before; moves the request's mark on (P5)."""
    request = grant.request
    once = request.num_computed_once
    request.num_computed_once = max(once, grant.end)
    return max(0, min(grant.end, once) - grant.start)


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
