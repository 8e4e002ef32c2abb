"""The decoder in the kernels: a model's logits, in every precision and on every instruction set."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.core.plan import Chunk, StepPlan
from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights, Rope
from headway.runtime import kernels

if kernels.why_missing() is not None:
    pytest.skip(f"no kernels: {kernels.why_missing()}", allow_module_level=True)

from headway.runtime.cpu import KernelBackend, why_not
from headway.runtime.cpu.paged import BlockTables, PagedMemory
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import TorchExecutor
from tiny import TINY, TINY_SPECS, tiny_weights
from tiny_plans import NUM_BLOCKS, chunk_of, random_plans
from tiny_swaps import NUM_SWAP_BLOCKS, with_swaps

ISAS = kernels.native.isas()
PRECISIONS = ("float32", "bfloat16", "int8")
BLOCK = 16
Array = NDArray[np.float32]


def widened(spec: DecoderSpec) -> DecoderSpec:
    """Widths that the kernels have; else the same."""

    def rope(old: Rope) -> Rope:
        base = old.frequencies[1]  # of four
        return Rope(tuple(base ** (i / 2) for i in range(8)), old.magnitude)

    ropes = {kind.rope: rope(kind.rope) for kind in spec.attention}
    kinds = {kind: AttentionKind(ropes[kind.rope], kind.window) for kind in spec.attention}
    return replace(
        spec,
        attention=tuple(kinds[kind] for kind in spec.attention),
        hidden_size=48,
        intermediate_size=80,
        head_dim=16,
    )


SPECS = {name: widened(spec) for name, spec in TINY_SPECS.items()}
LLAMA = SPECS["llama"]
WEIGHTS = {
    name: tiny_weights(spec, tied=name in ("llama", "gemma3")) for name, spec in SPECS.items()
}
each_model = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
each_precision = pytest.mark.parametrize("dtype", PRECISIONS)
each_kv = pytest.mark.parametrize("kv", PRECISIONS)
seeds = st.integers(0, 2**32)


def backend(
    spec: DecoderSpec = LLAMA, weights: DecoderWeights | None = None, **options: Any
) -> KernelBackend:
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK, "dtype": "float32"}
    weights = weights or WEIGHTS[spec.architecture]
    return KernelBackend(kernels.native, spec, weights, **(sizes | options))


def on_kernels(
    spec: DecoderSpec = LLAMA, weights: DecoderWeights | None = None, **options: Any
) -> TorchExecutor:
    return TorchExecutor(spec, backend(spec, weights, **options))


def reference(spec: DecoderSpec) -> ReferenceExecutor:
    weights = WEIGHTS[spec.architecture]
    return ReferenceExecutor(spec, weights, num_blocks=NUM_BLOCKS, block_size=BLOCK)


def whole(tokens: Sequence[int]) -> StepPlan:
    return StepPlan(0, (chunk_of("whole", tokens, tuple(range(-(-len(tokens) // BLOCK)))),))


def random_sequences(rng: random.Random, longest: int = 70) -> list[list[int]]:
    stem = [rng.randrange(TINY.vocab_size) for _ in range(rng.randrange(longest))]
    return [
        stem[: rng.randrange(len(stem) + 1)]
        + [rng.randrange(TINY.vocab_size) for _ in range(rng.randrange(1, longest))]
        for _ in range(rng.randrange(1, 5))
    ]


def bits(values: Array) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


@pytest.mark.parametrize("isa", ISAS)
@each_model
@settings(deadline=None, max_examples=5)
@given(seed=seeds)
def test_in_float32_logits_are_those_of_the_reference(
    spec: DecoderSpec, isa: str, seed: int
) -> None:
    rng = random.Random(seed)
    expected, actual = reference(spec), on_kernels(spec, isa=isa)
    for plan in random_plans(rng, random_sequences(rng), block_size=BLOCK):
        np.testing.assert_allclose(actual.logits(plan), expected.logits(plan), atol=2e-4)


# Root mean square of the difference, relative to that of the logits.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.15}


@pytest.mark.parametrize("isa", ISAS)
@each_model
@each_kv
@each_precision
def test_other_precisions_come_near(spec: DecoderSpec, isa: str, dtype: str, kv: str) -> None:
    tokens = [(i * 37) % spec.vocab_size for i in range(120)]
    plans = [
        StepPlan(step, (chunk_of("r", tokens[at : at + 40], tuple(range(8)), start=at),))
        for step, at in enumerate((0, 40, 80))
    ]
    precise, executor = reference(spec), on_kernels(spec, isa=isa, dtype=dtype, kv_cache_dtype=kv)
    for plan in plans:
        expected, found = precise.logits(plan), executor.logits(plan)
        off = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
        assert off < TOLERANCE[dtype] + TOLERANCE[kv]
        assert (off > 1e-4) == (dtype != "float32" or kv != "float32")


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(list(SPECS)),
    dtype=st.sampled_from(PRECISIONS),
    kv=st.sampled_from(PRECISIONS),
    isa=st.sampled_from(ISAS),
    num_threads=st.integers(1, 2),
    block_size=st.sampled_from((16, 32)),
    seed=seeds,
)
def test_chunks_blocks_batches_and_threads_change_no_bit(
    name: str, dtype: str, kv: str, isa: str, num_threads: int, block_size: int, seed: int
) -> None:
    rng = random.Random(seed)
    options = {"dtype": dtype, "kv_cache_dtype": kv, "isa": isa, "block_size": block_size}
    sequences = random_sequences(rng)
    executor = on_kernels(SPECS[name], num_threads=num_threads, **options)
    last: dict[str, Array] = {}
    for plan in random_plans(rng, sequences, block_size=block_size):
        for chunk, row in zip(plan.chunks, executor.logits(plan), strict=True):
            last[chunk.request_id] = row
    alone = on_kernels(SPECS[name], **options | {"block_size": BLOCK})
    for i, tokens in enumerate(sequences):
        np.testing.assert_array_equal(bits(last[str(i)]), bits(alone.logits(whole(tokens))[0]))


@each_kv
@settings(deadline=None, max_examples=10)
@given(seed=seeds)
def test_swapped_sequences_have_the_very_logits_of_undisturbed_ones(kv: str, seed: int) -> None:
    rng = random.Random(seed)
    plans = list(random_plans(rng, random_sequences(rng), block_size=BLOCK))
    executor = on_kernels(kv_cache_dtype=kv, num_swap_blocks=NUM_SWAP_BLOCKS)
    undisturbed = on_kernels(kv_cache_dtype=kv)
    swapping = with_swaps(rng, plans, block_size=BLOCK)
    np.testing.assert_array_equal(
        bits(np.concatenate([executor.logits(plan) for plan in swapping])),
        bits(np.concatenate([undisturbed.logits(plan) for plan in plans])),
    )


@each_kv
@each_precision
def test_positions_past_the_first_segments_of_attention(dtype: str, kv: str) -> None:
    """A decode reads several, which threads may share; a chunk crosses from one to the next."""
    rng = random.Random(3)
    tokens = [rng.randrange(LLAMA.vocab_size) for _ in range(510)]
    table = tuple(range(40, 72))
    rows = []
    for cuts in ((0, 510), (0, 200, 300, 509, 510), (0, 255, 256, 257, 510)):
        executor = on_kernels(dtype=dtype, kv_cache_dtype=kv, num_threads=2)
        for start, end in pairwise(cuts):
            chunk = chunk_of("r", tokens[start:end], table, start=start)
            (row,) = executor.logits(StepPlan(start, (chunk,)))
        rows.append(row)
    np.testing.assert_array_equal(bits(rows[1]), bits(rows[0]))
    np.testing.assert_array_equal(bits(rows[2]), bits(rows[0]))
    if dtype == kv == "float32":
        np.testing.assert_allclose(rows[0], reference(LLAMA).logits(whole(tokens))[0], atol=2e-4)


def poisoned(token: int) -> DecoderWeights:
    """This token's embedding is NaN, and its row of the head is not."""
    weights = WEIGHTS["llama"]
    embedding = weights.embedding.copy()
    embedding[token] = np.nan
    return replace(weights, embedding=embedding, head=weights.embedding)


@each_kv
@each_precision
def test_nan_in_one_request_ends_that_request_alone(dtype: str, kv: str) -> None:
    options = {"dtype": dtype, "kv_cache_dtype": kv, "num_threads": 2}
    executor = on_kernels(weights=poisoned(13), **options)
    one, other = chunk_of("a", [1, 2, 3], (0,)), chunk_of("c", list(range(20, 50)), (2, 4))
    sick = chunk_of("b", [5, 13, 6], (1,))
    alone = executor.logits(StepPlan(0, (one, other)))
    result = executor.submit(StepPlan(1, (one, sick, other)))
    assert list(result.errors) == [1]
    assert "NaN" in result.errors[1].message
    assert result.token_ids == (int(alone[0].argmax()), None, int(alone[1].argmax()))
    again = executor.logits(StepPlan(2, (one, sick, other)))
    np.testing.assert_array_equal(bits(again[[0, 2]]), bits(alone))


@each_kv
def test_nan_that_lies_in_blocks_beyond_a_context_is_never_read(kv: str) -> None:
    executor, fresh = (on_kernels(weights=poisoned(13), kv_cache_dtype=kv) for _ in range(2))
    table = (3, 5)
    executor.submit(StepPlan(0, (chunk_of("sick", [13] * 2 * BLOCK, table),)))
    tokens: list[int] = [1, 2, 3]
    for start in (0, *range(3, 30)):
        plan = StepPlan(1, (chunk_of("r", tokens[start:], table, start=start),))
        row, expected = executor.logits(plan)[0], fresh.logits(plan)[0]
        np.testing.assert_array_equal(bits(row), bits(expected))
        tokens.append(int(row.argmax()))


def test_blocks_are_zeroed_when_a_plan_says_so() -> None:
    executor = backend(kv_cache_dtype="int8")
    plan = StepPlan(0, (chunk_of("a", list(range(40)), (7, 2, 9)),))
    TorchExecutor(LLAMA, executor).submit(plan)
    held = executor._memory.data
    assert held[:, [7, 2, 9]].any(axis=-1).all()
    before = held[:, [7, 9]].copy()
    TorchExecutor(LLAMA, executor).submit(StepPlan(1, (), zero_blocks=(2,)))
    assert not held[:, 2].any()
    np.testing.assert_array_equal(held[:, [7, 9]], before)


@each_precision
def test_the_likeliest_token_is_the_first_of_the_largest_logits(dtype: str) -> None:
    weights = WEIGHTS["llama"]
    head = weights.head.copy()
    head[40] = head[17]  # ties: the first wins, in whatever panel and thread
    tied = replace(weights, head=head, embedding=weights.embedding)
    states = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 48), np.float32))
    states[9] = torch.nan
    states[20:40] = torch.from_numpy(head[17])
    for num_threads in (1, 2):
        model = backend(weights=tied, dtype=dtype, num_threads=num_threads)
        logits = model.logits(states)
        tokens, values = model.likeliest(states)
        healthy = torch.arange(50) != 9
        assert torch.equal(tokens[healthy], logits.argmax(dim=-1)[healthy])
        assert torch.equal(values[healthy], logits.amax(dim=-1)[healthy])
        assert 17 in tokens[20:40]
        assert values[9].isnan()


def test_sizes_are_told_and_a_copy_is_timed_without_a_trace() -> None:
    model = backend(dtype="int8", num_swap_blocks=2)
    per_layer = BLOCK * LLAMA.num_kv_heads * 2 * (LLAMA.head_dim + 4)
    assert model.kv_bytes == NUM_BLOCKS * LLAMA.num_layers * per_layer
    parameters = LLAMA.num_layers * (2 * 48 * 64 + 2 * 48 * 32 + 3 * 48 * 80) + 64 * 48
    assert parameters < model.weight_bytes < 1.3 * parameters
    TorchExecutor(LLAMA, model).submit(whole([1, 2, 3]))
    before = model._memory.data.copy()
    assert model.block_copy_s(iter(range(10_000)).__next__) > 0
    np.testing.assert_array_equal(model._memory.data, before)


def test_a_model_that_the_kernels_do_not_run_is_told_by_its_width() -> None:
    assert why_not(LLAMA) is None
    assert why_not(replace(LLAMA, head_dim=24)) == "head_dim is 24, no multiple of 16"
    assert why_not(replace(LLAMA, intermediate_size=40)) == (
        "intermediate_size is 40, no multiple of 16"
    )


def test_memory_copies_whole_blocks_of_all_layers() -> None:
    memory = PagedMemory(num_layers=3, num_blocks=5, block_bytes=64, num_swap_blocks=2)
    assert not memory.data.any()
    memory.data[...] = np.arange(3 * 5 * 64, dtype=np.uint64).reshape(3, 5, 64) % 251
    before = memory.data.copy()
    memory.copy_out([(4, 1), (0, 0)])
    memory.zero([0, 4])
    memory.copy_in([(1, 2), (0, 4)])
    np.testing.assert_array_equal(memory.data[:, 2], before[:, 4])
    np.testing.assert_array_equal(memory.data[:, 4], before[:, 0])
    assert not memory.data[:, 0].any()
    np.testing.assert_array_equal(memory.data[:, [1, 3]], before[:, [1, 3]])


@settings(deadline=None)
@given(
    num_rows=st.integers(1, 6),
    steps=st.lists(st.sets(st.integers(0, 9), max_size=8), max_size=30),
    seed=seeds,
)
def test_a_row_holds_its_requests_table_whoever_came_and_went(
    num_rows: int, steps: list[set[int]], seed: int
) -> None:
    rng = random.Random(seed)
    tables = BlockTables(num_rows, 8)
    held: dict[int, tuple[int, ...]] = {}
    for names in steps:
        for name in names:
            if name not in held or rng.random() < 0.2:  # new, or back from a preemption
                held[name] = tuple(rng.sample(range(50), rng.randint(1, 4)))
            elif len(held[name]) < 8 and rng.random() < 0.4:
                held[name] = (*held[name], rng.randrange(50))
        chunks = [Chunk(str(name), 0, (1,), held[name]) for name in names]
        rows = tables.rows(chunks)
        assert len(set(rows)) == len(rows)
        for chunk, row in zip(chunks, rows, strict=True):
            table = chunk.block_table
            assert tuple(tables.data[row, : len(table)].tolist()) == table
