"""One request, its states, and the transitions that are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any

from headway.core.params import SamplingParams
from headway.core.plan import Sample
from headway.core.structured import Constraint
from headway.metrics import RequestRecord

__all__ = ["FinishReason", "Request", "RequestState"]


class FinishReason(StrEnum):
    """Why a request ended; every accepted request ends with exactly one (rule A3)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


class RequestState(Enum):
    WAITING = "waiting"
    """Accepted, never admitted."""
    RUNNING = "running"
    """Admitted: holds blocks and gets tokens."""
    PREEMPTED = "preempted"
    """Gave its blocks up; waits to be admitted again and computed anew."""
    SWAPPED = "swapped"
    """Gave its blocks up; waits for them to be copied back."""
    FINISHED_STOP = "finished_stop"
    FINISHED_LENGTH = "finished_length"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_TIMEOUT = "finished_timeout"
    FINISHED_ERROR = "finished_error"


FINISHED = {
    FinishReason.STOP: RequestState.FINISHED_STOP,
    FinishReason.LENGTH: RequestState.FINISHED_LENGTH,
    FinishReason.ABORT: RequestState.FINISHED_ABORTED,
    FinishReason.TIMEOUT: RequestState.FINISHED_TIMEOUT,
    FinishReason.ERROR: RequestState.FINISHED_ERROR,
}
_ANY_END = frozenset(FINISHED.values())
# A preempted request may still end with the token of a step that was in flight (rule S11).
_LEGAL: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset(
        {
            RequestState.RUNNING,
            RequestState.FINISHED_ABORTED,
            RequestState.FINISHED_TIMEOUT,
            RequestState.FINISHED_ERROR,
        }
    ),
    RequestState.RUNNING: _ANY_END | {RequestState.PREEMPTED, RequestState.SWAPPED},
    RequestState.PREEMPTED: _ANY_END | {RequestState.RUNNING},
    RequestState.SWAPPED: _ANY_END | {RequestState.RUNNING, RequestState.PREEMPTED},
}


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """What the scheduler knows of one request. The core alone mutates it.

    `seed` counts where the params have none.
    """

    request_id: str
    prompt_token_ids: InitVar[Sequence[int]]
    params: SamplingParams
    _: KW_ONLY
    arrival_s: float
    seed: int = 0
    eos_token_ids: InitVar[Sequence[int]] = ()
    priority: int = 0
    tenant: str = ""
    cache_salt: str | None = None
    deadline_s: float | None = None
    """Seconds from arrival until its first token is due (rule S13, `deadline`)."""
    queue_timeout_s: float | None = None
    """Seconds from arrival after which it ends, if it was never admitted (rule A2)."""
    index: int = 0
    """Which of the completions of its prompt this is (`n`)."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The params' `bad_words` as tokens."""
    constraint: InitVar[Constraint | None] = None
    """What its output is held to (the params' `structured_outputs`)."""

    # What it comes to.
    state: RequestState = field(default=RequestState.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    token_ids: list[int] = field(init=False)
    """Known tokens: prompt, then output."""
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = field(default=0, init=False)
    """Tokens whose KV is in the cache once every submitted plan has run."""
    num_pending: int = field(default=0, init=False)
    """Sampled tokens whose value is still in flight (0 or 1 per plan in flight)."""
    quiet_until_computed: int = field(default=0, init=False)
    """While it decodes: as long as fewer tokens than this are computed, a plan is one more token
    to it and nothing else. 0: it does not decode, or is a special case."""
    quiet_until_known: int = field(default=0, init=False)
    """The same of its known tokens, and a result."""
    max_total_tokens: int = field(init=False)
    """Prompt and output together never exceed this; set at the door (rule S10)."""
    num_wanted_tokens: int = field(init=False)
    """Tokens whose KV is ever wanted: nothing follows the last output token."""
    num_prompt_rows: int = field(default=0, init=False)
    """Prompt tokens whose log-probabilities were given out, from the second one on."""
    sample: Sample = field(init=False)
    """How its tokens are drawn, but for what changes from one to the next."""
    draws_alike: bool = field(init=False)
    """Nothing but the position does."""
    stop_token_ids: frozenset[int] = field(init=False)

    # Its place.
    sequence: int = field(default=0, init=False)
    """Order of arrival; unique. Set when the scheduler takes the request."""
    rank: tuple[float, ...] = field(default=(), init=False)
    """Its place in the queue, as the policy put it when the request joined it."""
    num_skips: int = field(default=0, init=False)
    """Requests admitted before it while it was the head of the queue (rule S9)."""
    num_prefix_blocks: int = field(default=-1, init=False)
    """The most blocks that a lookup found while it waited for a prefix (rule S15)."""
    num_prefix_waits: int = field(default=0, init=False)
    """Steps in which it waited for a prefix in vain (rule S15)."""
    num_preemptions: int = field(default=0, init=False)
    num_memory_preemptions: int = field(default=0, init=False)
    num_computed_once: int = field(default=0, init=False)
    """The most that was computed before a preemption: tokens below are computed again."""
    isolated_until: int = field(default=0, init=False)
    """After a failed step: runs alone until this many tokens are computed (rule A3)."""

    # Its blocks.
    held: Any = field(default=None, init=False)
    """The KV cache manager's: the blocks it holds while it is admitted."""
    found: Any = field(default=None, init=False)
    """The KV cache manager's: what the last lookup found, and how long that stands."""
    block_keys: list[int] = field(default_factory=list, init=False)
    """Keys of the first full blocks; depends on the tokens alone, so it outlives preemption."""
    block_tokens: list[bytes] = field(default_factory=list, init=False)
    """The tokens of those blocks, as the prefix cache compares them."""
    swapped: tuple[int, ...] = field(default=(), init=False)
    """Swap slots that hold its computed tokens while it is SWAPPED (rule P2)."""

    # Its account.
    num_cached_tokens: int = field(default=0, init=False)
    admitted_s: float = field(default=0.0, init=False)
    """When it was last admitted."""
    first_scheduled_s: float | None = field(default=None, init=False)
    first_token_s: float | None = field(default=None, init=False)

    def __post_init__(
        self,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        constraint: Constraint | None,
    ) -> None:
        params = self.params
        self.seed = self.seed if params.seed is None else params.seed
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.limit_to(self.num_prompt_tokens)
        # A constrained output ends where nothing else is allowed, whatever is to be ignored.
        ends = () if params.ignore_eos and constraint is None else tuple(eos_token_ids)
        self.stop_token_ids = frozenset((*params.stop_token_ids, *ends))
        self.sample = Sample(
            params,
            self.seed,
            self.index,
            suppressed=tuple(sorted(ends)) if params.ignore_eos else (),
            bad_words=self.bad_words,
            prompt_ids=() if params.repetition_penalty == 1.0 else tuple(prompt_token_ids),
            constraint=constraint,
        )
        self.draws_alike = not (params.min_tokens or self.sample.heeds_output)

    def resolve(self, params: SamplingParams) -> None:
        """The door's last word on the params: what stood for a number is one."""
        self.params = params
        self.sample = replace(self.sample, params=params)

    def limit_to(self, num_tokens: int) -> None:
        """Sets `max_total_tokens`, and what follows from it."""
        self.max_total_tokens = num_tokens
        self.num_wanted_tokens = max(self.num_prompt_tokens, num_tokens - 1)

    def sample_at(self, end: int) -> Sample:
        """How the token at position `end` is drawn."""
        if self.draws_alike:
            return self.sample
        sample, params = self.sample, self.params
        if end - self.num_prompt_tokens < params.min_tokens:
            sample = replace(sample, suppressed=tuple(sorted(self.stop_token_ids)))
        if sample.heeds_output:
            output = tuple(self.token_ids[self.num_prompt_tokens :])
            sample = replace(sample, output_ids=output)
        return sample

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_expected_tokens(self) -> int:
        """Known tokens and those in flight."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens whose KV is wanted by now."""
        return min(len(self.token_ids) + self.num_pending, self.num_wanted_tokens)

    @property
    def wants_prompt_rows(self) -> bool:
        """Log-probabilities of its prompt are still to come."""
        return (
            self.params.prompt_logprobs is not None
            and self.num_prompt_rows < self.num_prompt_tokens - 1
        )

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def move_to(self, state: RequestState) -> None:
        """Changes the state; an illegal transition raises RuntimeError."""
        if state not in _LEGAL.get(self.state, frozenset()):
            raise RuntimeError(
                f"request {self.request_id}: {self.state.name} → {state.name} is not legal"
            )
        self.state = state

    def end(self, reason: FinishReason) -> None:
        self.move_to(FINISHED[reason])
        self.finish_reason = reason

    def record(self, now: float) -> RequestRecord:
        """The request's account of itself, once it has ended."""
        assert self.finish_reason is not None
        return RequestRecord(
            request_id=self.request_id,
            arrival_s=self.arrival_s,
            first_scheduled_s=self.first_scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=now,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            max_tokens=self.max_total_tokens - self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            priority=self.priority,
            tenant=self.tenant,
            finish_reason=self.finish_reason.value,
        )

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} {self.state.name} "
            f"{self.num_computed_tokens}/{len(self.token_ids)}>"
        )
