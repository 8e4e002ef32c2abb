"""Rows of logits to sample from, and both samplers under test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, Sample
from headway.runtime import sample_reference
from headway.runtime.adjustments import adjust
from headway.runtime.inputs import SampleRow
from headway.runtime.results import SampledRows
from headway.runtime.sample_reference import sample_row
from headway.runtime.sampler import sample

__all__ = ["ADJUST", "Array", "SampledRows", "draw", "plainly", "row_of", "sampled"]

Array = npt.NDArray[np.float32]


def row_of(
    seed: int = 0,
    position: int = 0,
    suppressed: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    **params: Any,
) -> SampleRow:
    one = Sample(
        params=SamplingParams(**params),
        seed=seed,
        index=0,
        suppressed=tuple(suppressed),
        bad_words=tuple(tuple(word) for word in bad_words),
        prompt_ids=tuple(prompt_ids),
        output_ids=tuple(output_ids),
    )
    return SampleRow(one, position, one.output_ids)


def sampled(logits: Array, rows: Sequence[SampleRow]) -> SampledRows:
    return sample(torch.tensor(logits), rows)  # a copy


def draw(logits: Array, rows: Sequence[SampleRow]) -> list[int | None]:
    found = sampled(logits, rows)
    assert not found.errors
    return found.token_ids


def plainly(
    logits: Array, rows: Sequence[SampleRow]
) -> tuple[list[int | None], dict[int, ChunkError]]:
    """Tokens and errors by the plain definition."""
    tokens: list[int | None] = [None] * len(rows)
    errors = {}
    for i, row in enumerate(rows):
        match sample_row(logits[i], row):
            case ChunkError() as error:
                errors[i] = error
            case token:
                tokens[i] = token
    return tokens, errors


def _adjust_in_torch(logits: Array, row: SampleRow) -> Array:
    batch = torch.tensor(logits[None])
    adjust(batch, [row])
    return batch[0].numpy()


ADJUST: dict[str, Callable[[Array, SampleRow], Array]] = {
    "torch": _adjust_in_torch,
    "plain": sample_reference.adjusted,
}
