"""Blocks may hold anything when a plan hands them out: of a plan that failed, or of a request that
ended while a chunk of it was in flight, whose NaN nobody has seen yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core.plan import StepPlan
from headway.models.spec import DecoderSpec, DecoderWeights
from tiny import TINY
from tiny_executors import WEIGHTS, each_executor, each_model
from tiny_plans import BLOCK_SIZE, chunk_of, whole

TABLE = (7, 3, 5)
BAD = 60
"""Its embedding is NaN: so is all KV that it writes, from the second layer on at least."""


def with_a_bad_token(spec: DecoderSpec) -> DecoderWeights:
    weights = WEIGHTS[spec.architecture]
    embedding = weights.embedding.copy()
    embedding[BAD] = np.nan
    return replace(weights, embedding=embedding)  # the head stays: no logits but its own are NaN


@each_executor
@each_model
@pytest.mark.parametrize("num_prompt", [1, 2, 4, 6, 9])
def test_nan_in_a_block_that_is_handed_out_reaches_nobody(
    make: Callable[..., Any], spec: DecoderSpec, num_prompt: int
) -> None:
    executor = make(spec, with_a_bad_token(spec))
    expected = list(range(num_prompt))
    while len(expected) < len(TABLE) * BLOCK_SIZE:
        expected.append(executor.collect(executor.submit(whole(expected))).token_ids[0])

    spoil = chunk_of("bad", [BAD] * len(TABLE) * BLOCK_SIZE, TABLE)
    spoilt = executor.submit(StepPlan(step=1, chunks=(spoil,)))
    # Nothing of that was applied when the next plans are made, so they zero nothing.
    known, start = expected[:num_prompt], 0
    while len(known) < len(expected):
        good = chunk_of("good", known[start:], TABLE, start=start)
        start = len(known)
        result = executor.collect(executor.submit(StepPlan(step=2, chunks=(good,))))
        assert not result.errors
        known.append(result.token_ids[0])
    assert known == expected
    assert executor.collect(spoilt).errors


@each_executor
def test_nan_in_blocks_that_a_table_holds_beyond_the_context_reaches_nobody(
    make: Callable[..., Any],
) -> None:
    executor = make(TINY, with_a_bad_token(TINY))
    long, short = list(range(3 * BLOCK_SIZE - 1)), [5]
    expected = [executor.submit(whole(tokens)).token_ids[0] for tokens in (long, short)]
    executor.submit(StepPlan(step=1, chunks=(chunk_of("bad", [BAD] * 3 * BLOCK_SIZE, TABLE),)))
    executor.submit(StepPlan(step=2, chunks=(chunk_of("long", long[:-1], (0, 1, 2)),)))
    both = (
        chunk_of("long", long[-1:], (0, 1, 2), start=len(long) - 1),
        chunk_of("short", short, TABLE),
    )
    assert list(executor.submit(StepPlan(step=3, chunks=both)).token_ids) == expected
