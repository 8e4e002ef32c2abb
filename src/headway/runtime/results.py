"""What every executor makes of the rows that it sampled: the tokens of each chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.plan import ChunkError, StepPlan, StepResult, TokenLogprobs
from headway.runtime.inputs import TokensByRequest

__all__ = ["SampledRows", "num_accepted", "sampled_tokens", "step_result"]


@dataclass(slots=True)
class SampledRows:
    """What rows of logits came to, in their order."""

    token_ids: list[int | None] = field(default_factory=list)
    """The token of each row; None where it has an error."""
    errors: dict[int, ChunkError] = field(default_factory=dict)
    """Row → why no token can be sampled."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """Row → of its token, for the rows whose params ask for `logprobs`."""

    @classmethod
    def of(cls, num_rows: int) -> SampledRows:
        """Rows of which nothing is known yet."""
        return cls([None] * num_rows)

    def put(self, places: Sequence[int], others: SampledRows) -> None:
        """Takes what others came to, at the given places among these rows."""
        for place, token in zip(places, others.token_ids, strict=True):
            self.token_ids[place] = token
        self.errors |= {places[row]: reason for row, reason in others.errors.items()}
        self.logprobs |= {places[row]: entry for row, entry in others.logprobs.items()}


def num_accepted(drafts: Sequence[int], sampled: Sequence[int | None]) -> int:
    """How many drafts hold: the first ones, as far as each is what was sampled in its place.

    `sampled` has one token more, that after the last draft. A row without a token equals no
    draft, so it ends what is accepted, and the rows after it do not matter.
    """
    differing = (i for i, draft in enumerate(drafts) if sampled[i] != draft)
    return next(differing, len(drafts))


def step_result(
    plan: StepPlan,
    sampled: SampledRows,
    errors: Mapping[int, ChunkError],
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]],
) -> StepResult:
    """Of the sampled rows, in the order of `inputs.output_rows`; the rest is by chunk index.

    A chunk with an error keeps nothing but that. Prompt rows without log-probabilities (NaN
    logits) are an error of their chunk.
    """
    tokens: list[int | None] = [None] * len(plan.chunks)
    accepted: dict[int, tuple[int, ...]] = {}
    failed = dict(errors)
    logprobs: dict[int, TokenLogprobs] = {}
    for index, drafts, row in _outcomes(plan, sampled.token_ids):
        tokens[index] = sampled.token_ids[row]
        if drafts:
            accepted[index] = drafts
        if row in sampled.errors:
            failed.setdefault(index, sampled.errors[row])
        if row in sampled.logprobs:
            logprobs[index] = sampled.logprobs[row]
    for index, entries in prompt_logprobs.items():
        if any(math.isnan(entry.logprob) for entry in entries):
            error = ChunkError("no prompt_logprobs: the logits hold NaN or infinity")
            failed.setdefault(index, error)
    return StepResult(
        step=plan.step,
        token_ids=tuple(None if i in failed else token for i, token in enumerate(tokens)),
        accepted={i: drafts for i, drafts in accepted.items() if i not in failed},
        errors=failed,
        logprobs={i: entry for i, entry in logprobs.items() if i not in failed},
        prompt_logprobs={i: rows for i, rows in prompt_logprobs.items() if i not in failed},
    )


def _outcomes(
    plan: StepPlan, sampled: Sequence[int | None]
) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Of each chunk with a sample: its index, its accepted drafts, the row of its last token."""
    row = 0
    for index, chunk in enumerate(plan.chunks):
        if chunk.sample is None:
            continue
        drafts = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
        count = num_accepted(drafts, sampled[row : row + len(drafts) + 1])
        yield index, drafts[:count], row + count
        row += len(drafts) + 1


def sampled_tokens(plan: StepPlan, result: StepResult) -> TokensByRequest:
    """What a plan sampled, for the plan that follows it. Who had drafts is left out: where its
    next token goes is known only once the result is applied (rule S11)."""
    return {
        chunk.request_id: token
        for chunk, token in zip(plan.chunks, result.token_ids, strict=True)
        if chunk.sample is not None and not chunk.num_drafts
    }
