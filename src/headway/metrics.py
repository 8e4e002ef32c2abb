"""What happened, as plain records: one per step, one per ended request.

The stream of these records is the one source of metrics, logs and recordings; nothing
here exports them anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = [
    "Admission",
    "BatchEntry",
    "Costs",
    "EngineState",
    "Observer",
    "PrefixHitRate",
    "RequestRecord",
    "StepRecord",
]


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured of the executor, for decisions that depend on it (rule S16)."""

    prefill_token_s: float
    """Seconds that one more prompt token adds to a step."""
    block_copy_s: float
    """Seconds that copying one KV block takes, to the swap space or back."""


class Admission(NamedTuple):
    """How a request came to run."""

    kind: str
    """`first`, or `again` after a preemption."""
    lookup_tokens: int
    """Known tokens that the prefix cache was asked for; 0 where it was not."""
    hit_tokens: int
    """Of those, tokens found."""


class BatchEntry(NamedTuple):
    """One request's part in one step."""

    request_id: str
    computed_before: int
    """Tokens whose KV was in the cache before the chunk, prefix hits included."""
    num_tokens: int
    admission: str = ""
    """`first` or `again` (after a preemption) in the step that admits it, else empty."""
    lookup_tokens: int = 0
    """Known tokens at the admission, had the prefix cache been asked; 0 where it was not."""
    hit_tokens: int = 0
    """Of those, tokens found in the prefix cache."""


class _Chunk(Protocol):
    """Of a plan's chunk, what a record needs."""

    @property
    def request_id(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_drafts(self) -> int: ...
    @property
    def sample(self) -> object | None: ...


_NO_ADMISSION = Admission("", 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of the scheduler, complete once its result was applied."""

    step: int
    time_s: float
    """When the plan was made, on the engine's clock."""
    duration_s: float
    """From making the plan, or from applying the result of the step before where that was later,
    to applying its own result: the durations of steps that overlap add up to the time they took."""
    costs: Costs | None = None
    """What the plan was made with."""
    chunks: tuple[_Chunk, ...]
    """The plan's; `batch` shows them with the admissions."""
    num_tokens: int
    """Tokens of the budget that were used."""
    admissions: Mapping[str, Admission]
    """Requests that were admitted, by id. One may have got no tokens yet."""
    budget: int
    """Tokens that the step could have taken (`max_num_batched_tokens`)."""
    num_running: int
    waiting: Mapping[str, int]
    """Requests left waiting, by what held up the head of the queue: `width`, `budget`,
    `blocks`, `watermark`, `preempted` (rule S7), `prefix` (S15) or `isolated` (a failed step is
    being looked into, rule A3)."""
    blocks_used: int
    """Blocks that requests hold."""
    blocks_cached: int
    """Blocks that nobody holds and the prefix cache can still hit."""
    blocks_free: int
    """Blocks that nobody holds and that hold nothing."""
    evictions: int
    """Cached blocks that were taken for new tokens."""
    preemptions: Mapping[str, int]
    """Requests preempted, by cause: `memory` or `priority`."""
    recomputed_tokens: int
    """Tokens computed again because of a preemption or a failed step."""
    swapped_out_blocks: int = 0
    """KV blocks copied to the swap space."""
    swapped_in_blocks: int = 0
    """KV blocks copied back."""
    discarded_tokens: int
    """Tokens computed for nothing: drafts that were not accepted, or their request had ended
    meanwhile, or the step failed."""
    num_draft_tokens: int = 0
    """Of `num_tokens`, guesses at what the request would sample (rule S14)."""
    num_accepted_tokens: int = 0
    """Of those, the ones that became output."""
    num_prompt_tokens: int = 0
    """Of `num_tokens`, prompt tokens that were never computed before for their request."""
    num_output_tokens: int = 0
    """Tokens that requests gained."""
    failed: bool = False
    """The executor raised; nothing of the step stands."""

    @property
    def batch(self) -> tuple[BatchEntry, ...]:
        """What each request was given."""
        none = _NO_ADMISSION
        return tuple(
            BatchEntry(
                chunk.request_id,
                chunk.start,
                chunk.num_tokens,
                *self.admissions.get(chunk.request_id, none),
            )
            for chunk in self.chunks
        )

    @property
    def num_waiting(self) -> int:
        return sum(self.waiting.values())


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request from arrival to its end; times in seconds on the engine's clock."""

    request_id: str
    arrival_s: float
    first_scheduled_s: float | None
    """None where it never was admitted."""
    first_token_s: float | None
    """When the result with its first output token was applied."""
    finished_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    """What was asked for, or what max_model_len leaves where that is less."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache at the first admission."""
    num_preemptions: int
    priority: int
    finish_reason: str
    tenant: str = ""


class EngineState(NamedTuple):
    """Where an engine is between two steps."""

    num_running: int
    num_waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int


class Observer(Protocol):
    """Sees every step once it is applied, and the requests that ended since the call before.

    `step` is None where requests ended (aborted, say) and no step was to be run.
    """

    def __call__(self, step: StepRecord | None, ended: tuple[RequestRecord, ...]) -> None: ...


class PrefixHitRate:
    """Share of looked-up tokens found in the prefix cache, over the last admissions.

    First admissions count; re-admissions after a preemption find their own blocks and
    would flatter the figure, so they are kept apart.
    """

    def __init__(self, window: int = 1000) -> None:
        self._first: deque[tuple[int, int]] = deque(maxlen=window)
        self._again: deque[tuple[int, int]] = deque(maxlen=window)

    def observe(self, step: StepRecord) -> None:
        for admission in step.admissions.values():
            if admission.lookup_tokens:
                window = self._first if admission.kind == "first" else self._again
                window.append((admission.hit_tokens, admission.lookup_tokens))

    @property
    def first(self) -> float | None:
        """In [0, 1]; None: there were no queries, which is not the same as no hits."""
        return _rate(self._first)

    @property
    def again(self) -> float | None:
        return _rate(self._again)


def _rate(window: deque[tuple[int, int]]) -> float | None:
    total = sum(lookup for _, lookup in window)
    return sum(hit for hit, _ in window) / total if total else None
