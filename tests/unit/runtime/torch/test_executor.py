from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from headway.core.plan import StepPlan
from headway.errors import InvalidConfig
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import TorchExecutor, executor
from tiny import TINY, tiny_weights
from tiny_plans import BLOCK_SIZE, NUM_BLOCKS, chunk_of, random_plans, whole

WEIGHTS = tiny_weights()
BF16 = torch.bfloat16


def make(dtype: torch.dtype = torch.float32, kv: torch.dtype | None = None) -> TorchExecutor:
    return TorchExecutor(
        TINY,
        WEIGHTS,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        kv_cache_dtype=kv,
    )


@pytest.mark.parametrize(
    ("dtype", "kv"), [(BF16, None), (torch.float32, BF16), (BF16, torch.float32)]
)
def test_other_precisions_are_near_the_reference(
    dtype: torch.dtype, kv: torch.dtype | None
) -> None:
    rng = random.Random(5)
    sequences = [[rng.randrange(TINY.vocab_size) for _ in range(n)] for n in (1, 17, 30, 44)]
    expected = ReferenceExecutor(TINY, WEIGHTS, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    actual = make(dtype, kv)
    rows, off = [], []
    for plan in random_plans(rng, sequences):
        rows.append(expected.logits(plan))
        off.append(actual.logits(plan) - rows[-1])
    assert np.std(np.concatenate(off)) < 0.03 * np.std(np.concatenate(rows))
    assert np.any(np.concatenate(off))


@pytest.mark.parametrize(("kv", "element_bytes"), [(None, 4), (BF16, 2)])
def test_the_cache_takes_the_bytes_that_the_spec_says(
    kv: torch.dtype | None, element_bytes: int
) -> None:
    expected = TINY.kv_elements_per_token * element_bytes * NUM_BLOCKS * BLOCK_SIZE
    assert make(kv=kv).kv_bytes == expected


@pytest.mark.parametrize("field", ["dtype", "kv_cache_dtype"])
def test_a_dtype_that_is_not_run_is_refused_by_name(field: str) -> None:
    options: Any = {field: torch.float16}
    with pytest.raises(InvalidConfig, match=f"{field}: .*float16") as refused:
        TorchExecutor(TINY, WEIGHTS, num_blocks=1, block_size=1, **options)
    assert refused.value.field == field


def test_logits_made_in_slices_are_sampled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = tuple(chunk_of(str(i), [i, i + 1], (i,), sample=i != 2) for i in range(7))
    plan = StepPlan(step=0, chunks=chunks)
    at_once = make().submit(plan)
    monkeypatch.setattr(executor, "_LOGITS_BYTES", 2 * 4 * TINY.vocab_size)
    assert make().submit(plan) == at_once
    assert at_once.token_ids[2] is None
    assert make().logits(plan).shape == (6, TINY.vocab_size)


def test_many_rows_of_any_length_decode_as_they_do_alone() -> None:
    lengths = [1, 2, 3, 5, 9, 17, 33, 34, 35, 36, 60, 4, 4, 80]
    rng = random.Random(11)
    sequences = [[rng.randrange(TINY.vocab_size) for _ in range(n)] for n in lengths]
    together = TorchExecutor(TINY, WEIGHTS, num_blocks=200, block_size=2)
    blocks = iter(rng.sample(range(200), 200))
    tables = [tuple(next(blocks) for _ in range((n + 1) // 2)) for n in lengths]
    prompts = [
        chunk_of(str(n), tokens[:-1], table, sample=False)
        for n, (tokens, table) in enumerate(zip(sequences, tables, strict=True))
        if len(tokens) > 1
    ]
    together.submit(StepPlan(step=0, chunks=tuple(prompts)))
    decodes = [
        chunk_of(str(n), tokens[-1:], table, start=len(tokens) - 1)
        for n, (tokens, table) in enumerate(zip(sequences, tables, strict=True))
    ]
    rows = together.logits(StepPlan(step=1, chunks=tuple(decodes)))
    alone = make()
    for tokens, row in zip(sequences, rows, strict=True):
        np.testing.assert_allclose(row, alone.logits(whole(tokens))[0], atol=1e-4)


def test_the_number_of_threads_is_set_when_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        TorchExecutor(TINY, WEIGHTS, num_blocks=1, block_size=1, num_threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_weights_that_may_not_be_written_are_left_as_they_are() -> None:
    weights = tiny_weights()
    for array in (weights.embedding, weights.final_norm, weights.layers[0].o):
        array.flags.writeable = False
    locked = TorchExecutor(TINY, weights, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    plan = whole([1, 2, 3])
    np.testing.assert_array_equal(locked.logits(plan), make().logits(plan))
