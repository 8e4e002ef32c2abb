"""What constraints allow, in both samplers; constraints here are functions of the output."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core.plan import Chunk, ChunkError, Sample, StepPlan
from headway.runtime.constraints import ConstraintThread, constrain
from headway.runtime.draws import why_no_token
from headway.runtime.inputs import SampleRow, sample_rows
from tiny_executors import each_executor
from tiny_plans import GREEDY, chunk_of
from tiny_rows import ADJUST, Array, plainly, row_of, sampled

VOCAB = 61


class Only:
    """Allows the tokens that a function of the output names."""

    def __init__(self, tokens: Callable[[Sequence[int]], Collection[int]]) -> None:
        self._tokens = tokens

    def allowed(self, output_ids: Sequence[int]) -> bytes:
        bits = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
        bits[list(self._tokens(output_ids))] = 1
        return np.packbits(bits, bitorder="little").tobytes()


class Spent:
    def allowed(self, output_ids: Sequence[int]) -> bytes:
        raise ValueError("too much to find out")


def constrained(constraint: Any, **row: Any) -> SampleRow:
    plain = row_of(**row)
    return plain._replace(sample=replace(plain.sample, constraint=constraint))


def asked(row: SampleRow, vocab: int = VOCAB) -> SampleRow:
    [one] = constrain([row], vocab)
    return one


def left(row: SampleRow) -> list[int]:
    assert row.mask is not None
    return np.flatnonzero(row.mask == 0.0).tolist()


def random_logits(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def test_suppressed_tokens_are_left_out_unless_nothing_else_is_allowed() -> None:
    either, end = Only(lambda _: (3, 7)), Only(lambda _: (7, 60))
    assert left(asked(constrained(either, suppressed=(7, 60)))) == [3]
    assert left(asked(constrained(end, suppressed=(7, 60)))) == [7, 60]
    assert left(asked(constrained(either))) == [3, 7]


def test_tokens_that_a_mask_does_not_reach_are_not_allowed() -> None:
    row = asked(constrained(Only(lambda _: (60,))), vocab=100)
    assert row.mask is not None
    assert row.mask.shape == (100,)
    assert left(row) == [60]


@pytest.mark.parametrize("adjust", ADJUST.values(), ids=ADJUST)
def test_what_is_not_allowed_is_banned_and_nothing_else_touched(
    adjust: Callable[[Array, SampleRow], Array],
) -> None:
    [logits] = random_logits(1)
    logits[[4, 5]] = (math.nan, math.inf)
    row = asked(constrained(Only(lambda _: (2, 3, 5)), suppressed=(3,), logit_bias={2: 1.5}))
    found = adjust(logits, row)
    expected = np.full(VOCAB, -np.inf, np.float32)
    expected[[2, 5]] = (logits[2] + np.float32(1.5), np.inf)
    expected[4] = np.nan  # to be seen
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("seed", range(6))
def test_a_mixed_batch_is_sampled_as_defined_and_others_are_not_disturbed(seed: int) -> None:
    rng = random.Random(seed)
    logits = random_logits(12, seed)
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.7},
        {"temperature": 1.5, "top_k": 3, "presence_penalty": 1.0, "output_ids": (1, 2)},
    ]
    plain = [row_of(seed=i, position=i, **rng.choice(options)) for i in range(12)]
    rows = [
        row._replace(sample=replace(row.sample, constraint=only(rng)))
        if rng.random() < 0.5
        else row
        for row in plain
    ]
    rows = constrain(rows, VOCAB)
    found, alone = sampled(logits, rows), sampled(logits, plain)
    assert (found.token_ids, found.errors) == plainly(logits, rows)
    for row, token, before in zip(rows, found.token_ids, alone.token_ids, strict=True):
        if row.mask is None:
            assert token == before
        else:
            assert token is not None
            assert token in left(row)


def only(rng: random.Random) -> Only:
    tokens = rng.sample(range(VOCAB), rng.randint(1, 5))
    return Only(lambda _: tokens)


def test_why_nothing_can_be_sampled_is_said() -> None:
    failed = asked(constrained(Spent()))
    assert left(failed) == []
    assert why_no_token(-math.inf, failed) == ChunkError(
        "too much to find out", ("structured_outputs",)
    )
    row = asked(constrained(Only(lambda _: (3,)), bad_words=((3,),), suppressed=(3,), min_tokens=1))
    assert why_no_token(-math.inf, row) == ChunkError(
        "together leave no token that can be sampled",
        ("structured_outputs", "bad_words", "min_tokens"),
    )


def test_one_thread_asks_for_all_and_none_where_there_is_no_constraint() -> None:
    thread = ConstraintThread(VOCAB)
    plain = [row_of(), row_of()]
    assert thread.submit(plain)() is plain
    rows = thread.submit([plain[0], constrained(Only(lambda output: (len(output),)))])()
    assert rows[0] is plain[0]
    assert left(rows[1]) == [0]


def test_a_token_in_flight_is_part_of_what_a_constraint_is_asked_about() -> None:
    sample = Sample(GREEDY, 0, 0, output_ids=(5,), constraint=Spent())
    chunk = Chunk("r", 3, (), tuple(range(4)), sample, follows_in_flight=True)
    [row] = sample_rows(StepPlan(1, (chunk,)), [(8,)])
    assert row.output_ids == (5, 8)
    assert not row.takes_likeliest


@each_executor
def test_executors_heed_constraints_beside_rows_without(make: Callable[[], Any]) -> None:
    """The constrained one fails, or takes a token that is not the likeliest."""
    prompt, table = [3, 1, 4, 1, 5], range(4)
    executor = make()
    [free] = executor.submit(StepPlan(1, (chunk_of("free", prompt, table),))).token_ids
    held = Only(lambda output: {(7 * len(output) + 2) % VOCAB, (free + 1) % VOCAB} - {free})
    chunks = [
        chunk_of(str(place), prompt, range(4 * place, 4 * place + 4))._replace(
            sample=Sample(GREEDY, 0, 0, constraint=constraint)
        )
        for place, constraint in enumerate((None, held, Spent(), None))
    ]
    result = executor.submit(StepPlan(2, tuple(chunks)))
    assert result.token_ids[0] == result.token_ids[3] == free
    assert result.token_ids[1] in {2, (free + 1) % VOCAB} - {free}
    assert list(result.errors) == [2]


@each_executor
def test_drafts_and_constraints_do_not_go_together(make: Callable[[], Any]) -> None:
    sample = Sample(GREEDY, 0, 0, constraint=Only(lambda _: (1,)))
    chunk = chunk_of("r", [1, 2, 3], range(4))._replace(sample=sample, num_drafts=1)
    with pytest.raises(ValueError, match="drafts cannot be sampled with a constraint"):
        make().submit(StepPlan(1, (chunk,)))
