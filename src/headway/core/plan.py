"""The seam between the scheduler and whatever computes: plain records.

A plan says which chunk of which request runs on which blocks and what is sampled; an
executor turns it into tokens. Plans can be recorded, replayed and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headway.core.params import SamplingParams
from headway.core.structured import Constraint

__all__ = [
    "Sample",
    "PromptRows",
    "Chunk",
    "StepPlan",
    "ChunkError",
    "TokenLogprobs",
    "StepResult",
    "Executor",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """How one token is drawn from the logits at the end of a chunk.

    The draw depends on (seed, index, position) and the logits alone, where the position is the
    end of the chunk: a request's samples are the same in any batch and after any preemption.
    Where nothing in it changes from token to token it is the same object in all of a request's
    chunks.
    """

    params: SamplingParams
    seed: int
    """The request's seed: its own, or the one drawn at arrival."""
    index: int
    """Which of the request's samples this is (its `n`)."""
    suppressed: tuple[int, ...] = ()
    """Tokens that may not be sampled here (stop tokens before `min_tokens`)."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The last token of each may not be sampled where the output ends with those before it."""
    prompt_ids: tuple[int, ...] = ()
    """The prompt, where a repetition penalty needs it; the same object in all of a request's
    samples."""
    output_ids: tuple[int, ...] = ()
    """The known output, where a penalty, `bad_words` or `constraint` need it. Where the chunk
    follows a token in flight, that token is part of the output too, and the executor adds it."""
    constraint: Constraint | None = None
    """Only what it allows after the output may be sampled. Of `suppressed` it then leaves what
    nothing else is allowed beside."""

    @property
    def heeds_output(self) -> bool:
        """The output is needed to draw the token."""
        return self.params.penalises_output or bool(self.bad_words) or self.constraint is not None


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Log-probabilities of prompt tokens that a chunk is to give (`prompt_logprobs`)."""

    first: int
    """Position of the first token asked for; the row that foretells it is at `first` - 1."""
    token_ids: tuple[int, ...]
    """The prompt tokens from there on; all of their rows lie in the chunk."""
    num_top: int
    """How many of the likeliest tokens go with each."""


class Chunk(NamedTuple):
    """The tokens that one request advances in one step."""

    request_id: str
    start: int
    """Position of the first token; the KV of all before it is in the cache, or is written
    by an earlier plan or by this one."""
    token_ids: tuple[int, ...]
    """The tokens to compute: known ones, then the drafts."""
    block_table: tuple[int, ...]
    """Logical → physical block, covering positions 0 to `end`. The same object as in the
    request's previous plan where the table did not change."""
    sample: Sample | None = None
    """What is sampled after the last token; None where the prompt is not complete."""
    follows_in_flight: bool = False
    """One more token comes after `token_ids`: the one that this request samples in the plan
    submitted just before this one. The executor fills it in (rule S11)."""
    prompt_rows: PromptRows | None = None
    """Log-probabilities of prompt tokens to give; None: none."""
    num_drafts: int = 0
    """So many of the last `token_ids` are drafts, guesses at what is sampled (rule S14): the
    executor samples after the last known token and after each draft, as `sample` says, with the
    position of each as its key. Only with a sample, and never where the chunk follows a token in
    flight."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.follows_in_flight

    @property
    def end(self) -> int:
        """Position after the last token, which a sampled token takes: what is computed once the
        chunk has run, drafts included (rejected ones do not count in the end)."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: one forward pass over one mixed batch."""

    step: int
    chunks: tuple[Chunk, ...]
    zero_blocks: tuple[int, ...] = ()
    """Blocks whose KV is set to zero before the chunks run: they held NaN (rule A3)."""
    copies_out: tuple[tuple[int, int], ...] = ()
    """(block, swap slot): copied to the swap space before anything else of the plan (P2)."""
    copies_in: tuple[tuple[int, int], ...] = ()
    """(swap slot, block): copied back after that and the zeroing, before the chunks run."""

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def to_run(self) -> bool:
        """There is something to compute or to copy; else no executor is to see the plan."""
        return bool(self.chunks or self.copies_out or self.copies_in)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token's natural log-probability, and those of the likeliest tokens, in the softmax
    of the model's raw logits: before temperature, penalties, bans and filters."""

    token_id: int
    logprob: float
    rank: int
    """1 + the number of tokens that are likelier."""
    top: tuple[tuple[int, float], ...]
    """(token, log-probability), likeliest first, the lower token on ties."""


@dataclass(frozen=True, slots=True)
class ChunkError:
    """Why a chunk has no token."""

    message: str
    fields: tuple[str, ...] = ()
    """What the request asks for that together leaves none, as its caller calls it; empty: the
    request is not at fault."""

    def __str__(self) -> str:
        return f"{', '.join(self.fields)}: {self.message}" if self.fields else self.message


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a plan came to; tuples are in the order of the plan's chunks."""

    step: int
    token_ids: tuple[int | None, ...]
    """The last sampled token of each chunk; None where nothing was to be sampled or it failed."""
    accepted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Index of a chunk → the tokens sampled before that one: its first drafts, as far as each
    equals what was sampled in its place. Chunks of which no draft was accepted may be left out."""
    errors: Mapping[int, ChunkError] = field(default_factory=dict)
    """Index of a chunk → why it has no token (NaN logits, for one). Other chunks stand."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """Index of a chunk → of its sampled token, where its params ask for `logprobs`."""
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Index of a chunk → of its `prompt_rows`, in their order."""


class Executor(Protocol):
    """Runs plans in the order they are submitted.

    A plan may be submitted before the previous one is collected. When `submit` or
    `collect` raises, that plan and those submitted after it are void: the executor must
    accept new plans as if they had never been. Blocks may hold anything: attention reads nothing
    beyond the end of a chunk.
    """

    def submit(self, plan: StepPlan) -> Any:
        """Begins a step and returns a handle for `collect`."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Waits for the step and returns its result. Each handle is collected once, in order."""
        ...

    def block_copy_s(self) -> float:
        """Seconds that copying one block takes, to the swap space or back, measured now. It
        disturbs nothing."""
        ...
