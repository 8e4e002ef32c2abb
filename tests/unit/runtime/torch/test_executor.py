from __future__ import annotations

import random
import weakref
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from headway.core.plan import StepPlan
from headway.errors import InvalidConfig
from headway.models.spec import DecoderSpec, LayerWeights
from headway.runtime.torch import EagerBackend, executor
from tiny import TINY, TINY_SPECS, tiny_weights
from tiny_executors import WEIGHTS, each_model, pytorch, reference
from tiny_plans import BLOCK_SIZE, NUM_BLOCKS, chunk_of, random_plans, whole

BF16 = torch.bfloat16


@each_model
@pytest.mark.parametrize(
    ("dtype", "kv"), [(BF16, None), (torch.float32, BF16), (BF16, torch.float32)]
)
def test_other_precisions_are_near_the_reference(
    spec: DecoderSpec, dtype: torch.dtype, kv: torch.dtype | None
) -> None:
    rng = random.Random(5)
    sequences = [[rng.randrange(TINY.vocab_size) for _ in range(n)] for n in (1, 17, 30, 44)]
    expected, actual = reference(spec), pytorch(spec, dtype=dtype, kv_cache_dtype=kv)
    rows, off = [], []
    for plan in random_plans(rng, sequences):
        rows.append(expected.logits(plan))
        off.append(actual.logits(plan) - rows[-1])
    assert np.std(np.concatenate(off)) < 0.03 * np.std(np.concatenate(rows))
    assert np.any(np.concatenate(off))


@pytest.mark.parametrize(("dtype", "same"), [(BF16, True), (torch.float32, False)])
def test_the_embedding_scale_is_rounded_to_the_dtype_of_the_weights(
    dtype: torch.dtype, same: bool
) -> None:
    scaled = replace(TINY, embedding_scale=4.9)
    rounded = replace(TINY, embedding_scale=4.90625)
    rows = [pytorch(s, dtype=dtype).logits(whole([1, 2, 3])) for s in (scaled, rounded)]
    assert np.array_equal(*rows) == same


def test_norms_that_bfloat16_would_round_are_kept_exact() -> None:
    def rows(norm: float) -> Any:
        weights = WEIGHTS["llama"]
        layers = [replace(w, mlp_norm=np.full_like(w.mlp_norm, norm)) for w in weights.layers]
        return pytorch(weights=replace(weights, layers=layers), dtype=BF16).logits(whole([1, 2]))

    assert torch.tensor(1 + 2**-9, dtype=BF16) == 1.0
    assert not np.array_equal(rows(1 + 2**-9), rows(1.0))


def test_layers_are_converted_one_by_one_and_let_go() -> None:
    arrays: list[Any] = []
    """All but the norms, which may be kept as they are."""

    def fresh(layer: LayerWeights) -> LayerWeights:
        own = {f.name: getattr(layer, f.name) for f in fields(layer)}
        copies = {name: None if array is None else array.copy() for name, array in own.items()}
        arrays.extend(weakref.ref(copy) for name, copy in copies.items() if "norm" not in name)
        return LayerWeights(**copies)

    def loading() -> Iterator[LayerWeights]:
        for layer in weights.layers:
            assert not any(array() is not None for array in arrays)
            yield fresh(layer)

    spec = TINY_SPECS["everything"]
    weights = WEIGHTS["everything"]
    lazy = pytorch(spec, replace(weights, layers=loading()), dtype=BF16)
    assert len(arrays) == 10 * spec.num_layers
    assert not any(array() is not None for array in arrays)
    plan = whole([1, 2, 3])
    np.testing.assert_array_equal(lazy.logits(plan), pytorch(spec, dtype=BF16).logits(plan))


@pytest.mark.parametrize(("kv", "element_bytes"), [(None, 4), (BF16, 2)])
def test_the_cache_takes_the_bytes_that_the_spec_says(
    kv: torch.dtype | None, element_bytes: int
) -> None:
    expected = TINY.kv_elements_per_token * element_bytes * NUM_BLOCKS * BLOCK_SIZE
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    backend = EagerBackend(TINY, WEIGHTS["llama"], **sizes, kv_cache_dtype=kv)
    assert backend.kv_bytes == expected


@pytest.mark.parametrize("field", ["dtype", "kv_cache_dtype"])
def test_a_dtype_that_is_not_run_is_refused_by_name(field: str) -> None:
    options: Any = {field: torch.float16}
    with pytest.raises(InvalidConfig, match=f"{field}: .*float16") as refused:
        pytorch(**options)
    assert refused.value.field == field


def test_logits_made_in_slices_are_sampled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = tuple(chunk_of(str(i), [i, i + 1], (i,), sample=i != 2) for i in range(7))
    plan = StepPlan(step=0, chunks=chunks)
    at_once = pytorch().submit(plan)
    monkeypatch.setattr(executor, "_LOGITS_BYTES", 2 * 4 * TINY.vocab_size)
    assert pytorch().submit(plan) == at_once
    assert at_once.token_ids[2] is None
    assert pytorch().logits(plan).shape == (6, TINY.vocab_size)


def test_many_rows_of_any_length_decode_as_they_do_alone() -> None:
    lengths = [1, 2, 3, 5, 9, 17, 33, 34, 35, 36, 60, 4, 4, 80]
    rng = random.Random(11)
    sequences = [[rng.randrange(TINY.vocab_size) for _ in range(n)] for n in lengths]
    together = pytorch(num_blocks=200, block_size=2)
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
    alone = pytorch()
    for tokens, row in zip(sequences, rows, strict=True):
        np.testing.assert_allclose(row, alone.logits(whole(tokens))[0], atol=1e-4)


def test_weights_that_may_not_be_written_are_left_as_they_are() -> None:
    weights = tiny_weights()
    for array in (weights.embedding, weights.final_norm, weights.layers[0].o):
        array.flags.writeable = False
    locked = pytorch(weights=weights)
    plan = whole([1, 2, 3])
    np.testing.assert_array_equal(locked.logits(plan), pytorch().logits(plan))
