"""What every executor makes of a plan before it computes: whole chunks, and the rows wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headway.core.plan import Chunk, ChunkError, Sample, StepPlan

__all__ = [
    "Mask",
    "OutputRows",
    "SampleRow",
    "TokensByRequest",
    "fill_in",
    "output_rows",
    "sample_rows",
]

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.float32]

TokensByRequest = Mapping[str, int | None]
"""What the last plan sampled; None where a request was to be sampled and failed."""


class SampleRow(NamedTuple):
    """What one row of logits is sampled with."""

    sample: Sample
    position: int
    """Of the token that is sampled: it keys the draw."""
    output_ids: tuple[int, ...]
    """The whole output so far, the token that was in flight included; empty where nothing needs
    it (`Sample.heeds_output`)."""
    mask: Mask | None = None
    """[vocab] Added to the logits: 0 for what its constraint allows, -inf for all else. None: it
    has no constraint, or that has not been asked yet."""
    failure: str = ""
    """Why its constraint allows nothing."""

    @property
    def takes_likeliest(self) -> bool:
        """Its token is that of the largest raw logit, and nothing else of the row is asked for."""
        sample, params = self.sample, self.sample.params
        return (
            params.greedy
            and params.logprobs is None
            and params.logit_bias is None
            and params.allowed_token_ids is None
            and not (sample.heeds_output or sample.suppressed)
        )

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Of the sample, where no constraint has taken them into account."""
        return self.sample.suppressed if self.mask is None else ()


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The tokens of a plan after which logits are wanted: of the samples, chunk by chunk in the
    plan's order, then of the prompt rows likewise."""

    chunks: Ids
    """[rows] Index of the chunk in the plan."""
    offsets: Ids
    """[rows] Index of the token in its chunk."""
    num_samples: int
    """So many of the rows are sampled from."""

    def in_batch(self, first_rows: Ids) -> Ids:
        """[rows] Their places in a batch in which chunk i of the plan begins at first_rows[i]."""
        places: Ids = first_rows[self.chunks] + self.offsets
        return places


def fill_in(
    plan: StepPlan, in_flight: TokensByRequest
) -> tuple[list[tuple[int, ...]], dict[int, ChunkError]]:
    """The tokens of every chunk, those in flight filled in, and errors by chunk index.

    A chunk that follows a failed sample gets token 0, so that the rest of the step stands,
    and an error. Raises ValueError where the plan before sampled nothing for the request.
    """
    tokens: list[tuple[int, ...]] = []
    errors: dict[int, ChunkError] = {}
    for index, chunk in enumerate(plan.chunks):
        if not chunk.follows_in_flight:
            tokens.append(chunk.token_ids)
            continue
        if chunk.request_id not in in_flight:
            raise ValueError(
                f"step {plan.step}: request {chunk.request_id!r} follows a token in flight, "
                "but the plan before samples none for it"
            )
        token = in_flight[chunk.request_id]
        if token is None:
            errors[index] = ChunkError("the token that it follows could not be sampled")
        tokens.append((*chunk.token_ids, token or 0))
    return tokens, errors


def output_rows(plan: StepPlan) -> OutputRows:
    """Which rows of logits a plan wants; of a chunk with drafts, the last `num_drafts` + 1."""
    samples, prompts = list[tuple[int, int]](), list[tuple[int, int]]()
    for index, chunk in enumerate(plan.chunks):
        if chunk.sample is not None:
            last = chunk.num_tokens - 1
            samples.extend((index, last - after) for after in range(chunk.num_drafts, -1, -1))
        if (asked := chunk.prompt_rows) is not None:
            first = asked.first - 1 - chunk.start
            prompts.extend((index, first + row) for row in range(len(asked.token_ids)))
    rows = np.array(samples + prompts, dtype=np.int64).reshape(-1, 2)
    return OutputRows(rows[:, 0], rows[:, 1], len(samples))


def sample_rows(plan: StepPlan, known: Sequence[tuple[int, ...]]) -> list[SampleRow]:
    """One per sampled row, in the order of `output_rows`; `known` are the tokens of `fill_in`."""
    return [
        row
        for chunk, tokens in zip(plan.chunks, known, strict=True)
        if chunk.sample is not None
        for row in _rows_of(chunk, chunk.sample, tokens)
    ]


def _rows_of(chunk: Chunk, sample: Sample, tokens: tuple[int, ...]) -> Iterator[SampleRow]:
    """Where there are drafts, nothing in the sample depends on the output (`check_plan`)."""
    output = sample.output_ids
    if chunk.follows_in_flight and sample.heeds_output:
        output = (*output, tokens[-1])
    for position in range(chunk.end - chunk.num_drafts, chunk.end + 1):
        yield SampleRow(sample, position, output)
