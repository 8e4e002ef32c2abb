"""The attention kernel by itself: against float64, and bitwise whatever it was computed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.runtime import kernels

if kernels.why_missing() is not None:
    pytest.skip(f"no kernels: {kernels.why_missing()}", allow_module_level=True)

native = kernels.native
ISAS = native.isas()
PRECISIONS = ["float32", "bfloat16", "int8"]
SEGMENT = 256  # positions that a softmax is made over before they are merged
Array = NDArray[np.float32]

# Relative error of the output (root mean square) against float64 on what was written: the cache's
# rounding, and that of queries and weights to the same precision.
TOLERANCE = {"float32": 1e-6, "bfloat16": 8e-3, "int8": 2.5e-2}


@dataclass(frozen=True)
class Layout:
    """What a cache and its model are like."""

    precision: str = "float32"
    isa: str = ISAS[0]
    heads: int = 3
    kv_heads: int = 1
    dim: int = 64
    block: int = 16
    window: int = 0
    softcap: float = 0.0

    @property
    def record(self) -> int:
        return int(native.record_bytes(self.isa, self.precision, self.block, self.dim))


@dataclass(frozen=True)
class Sequence_:
    """One request: q of the positions from `start` on, K and V of all."""

    q: Array  # [rows, heads, dim]
    k: Array  # [positions, kv_heads, dim]
    v: Array

    @property
    def start(self) -> int:
        return len(self.k) - len(self.q)


def a_sequence(
    layout: Layout, positions: int, rows: int, seed: int = 0, sharpness: float = 1.0
) -> Sequence_:
    rng = np.random.default_rng([seed, positions, rows])

    def normal(count: int, heads: int) -> Array:
        return rng.standard_normal((count, heads, layout.dim)).astype(np.float32)

    q = normal(rows, layout.heads) * np.float32(sharpness)
    return Sequence_(q, normal(positions, layout.kv_heads), normal(positions, layout.kv_heads))


def expected(layout: Layout, sequence: Sequence_) -> NDArray[np.float64]:
    """Attention in float64, [rows, heads, dim]."""
    group = layout.heads // layout.kv_heads
    k = np.repeat(sequence.k.astype(np.float64), group, axis=1)
    v = np.repeat(sequence.v.astype(np.float64), group, axis=1)
    scores = np.einsum("rhd,thd->hrt", sequence.q.astype(np.float64), k) / np.sqrt(layout.dim)
    if layout.softcap:
        scores = layout.softcap * np.tanh(scores / layout.softcap)
    back = np.arange(len(k)) - (sequence.start + np.arange(len(sequence.q)))[:, None]
    seen = (back <= 0) & ((back > -layout.window) if layout.window else True)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hrt,thd->rhd", weights, v)


@dataclass
class Batch:
    """Sequences in one cache; blocks that are free, and slots behind a sequence, hold `rubbish`."""

    layout: Layout
    sequences: Sequence[Sequence_]
    seed: int = 0  # where the blocks are
    rubbish: int = 0xFF  # every byte: NaN in float32 and bfloat16, and as a scale
    spare: int = 2
    tables: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.layout.block
        counts = [-(-len(each.k) // size) for each in self.sequences]
        blocks = sum(counts) + self.spare
        places = np.random.default_rng(self.seed).permutation(blocks)
        shape = (blocks, self.layout.kv_heads, self.layout.record)
        self.cache = np.full(shape, self.rubbish, np.uint8)
        for sequence, count in zip(self.sequences, counts, strict=True):
            table, places = places[:count], places[count:]
            self.tables.append(table.tolist())
            positions = np.arange(len(sequence.k))
            slots = table[positions // size] * size + positions % size
            native.write_kv(
                isa=self.layout.isa,
                kv=self.layout.precision,
                block_size=size,
                cache=self.cache,
                slots=slots.astype(np.int32),
                k=sequence.k,
                v=sequence.v,
            )

    def run(self, cuts: Sequence[Sequence[int]] | None = None, threads: int = 1) -> list[Array]:
        """[rows, heads, dim] of each sequence; `cuts[i]`: rows at which its chunks begin."""
        q = np.concatenate([each.q for each in self.sequences])
        spans, tables, row = [], [], 0
        for i, sequence in enumerate(self.sequences):
            edges = sorted({0, len(sequence.q), *(cuts[i] if cuts else ())})
            for begin, end in pairwise(edges):
                spans.append([row + begin, end - begin, sequence.start + begin, len(tables)])
            tables += self.tables[i]
            row += len(sequence.q)
        out = np.full_like(q, np.nan)
        native.attention(
            isa=self.layout.isa,
            kv=self.layout.precision,
            block_size=self.layout.block,
            num_kv_heads=self.layout.kv_heads,
            q=q,
            out=out,
            cache=self.cache,
            spans=np.array(spans, np.int32),
            tables=np.array(tables, np.int32),
            scale=self.layout.dim**-0.5,
            window=self.layout.window,
            softcap=self.layout.softcap,
            num_threads=threads,
        )
        return np.split(out, np.cumsum([len(each.q) for each in self.sequences])[:-1])


def alone(layout: Layout, sequence: Sequence_) -> Array:
    """Row by row, one thread: what everything else must equal."""
    return Batch(layout, [sequence]).run([range(len(sequence.q))])[0]


def assert_same(got: Array, wanted: Array) -> None:
    """Bit for bit, but for the bits of a NaN."""
    np.testing.assert_array_equal(got, wanted, strict=True)
    assert np.array_equal(np.signbit(got), np.signbit(wanted)) or np.isnan(wanted).any()


def assert_close(layout: Layout, batch: Batch, got: Sequence[Array]) -> None:
    wanted = np.concatenate([expected(layout, each).ravel() for each in batch.sequences])
    error = np.concatenate([each.ravel() for each in got]) - wanted
    relative = np.sqrt(np.mean(error**2) / np.mean(wanted**2))
    assert relative < TOLERANCE[layout.precision], layout


SHAPES = [
    Layout(heads=9, kv_heads=3, dim=64),
    Layout(heads=4, kv_heads=1, dim=256, block=32, window=100),
    Layout(heads=2, kv_heads=2, dim=16, softcap=2.0),
    Layout(heads=8, kv_heads=1, dim=80, block=32, window=7),
    Layout(heads=2, kv_heads=1, dim=128, window=300, softcap=5.0),
]
# Single tokens and chunks, within a segment, up to its edge and across it.
MIXED = [(1, 1), (300, 1), (256, 1), (257, 2), (530, 20), (40, 40), (270, 33)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.heads}over{s.kv_heads}-{s.dim}")
def test_is_what_float64_says(isa: str, precision: str, shape: Layout) -> None:
    layout = replace(shape, isa=isa, precision=precision)
    batch = Batch(layout, [a_sequence(layout, *sizes) for sizes in MIXED])
    assert_close(layout, batch, batch.run(threads=2))


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 3.0, 10.0])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_flat_and_peaked_alike(precision: str, sharpness: float) -> None:
    layout = Layout(precision=precision)
    batch = Batch(layout, [a_sequence(layout, 600, 8, sharpness=sharpness)])
    wanted = expected(layout, batch.sequences[0])
    error = batch.run()[0] - wanted
    # A score's rounding is relative to the score: sharper ones have more of it.
    limit = TOLERANCE[precision] * max(1.0, min(sharpness, 3.0))
    assert np.sqrt(np.mean(error**2) / np.mean(wanted**2)) < limit


@pytest.mark.parametrize("window", [0, 1, 2, 31, 32, 255, 256, 257])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_at_the_edges_of_segments_and_windows(precision: str, window: int) -> None:
    layout = Layout(precision=precision, window=window, heads=2)
    edges = [1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 768, 769]
    batch = Batch(layout, [a_sequence(layout, each, min(each, 3)) for each in edges])
    got = batch.run(threads=2)
    assert_close(layout, batch, got)
    for sequence, rows in zip(batch.sequences, got, strict=True):
        assert_same(rows, alone(layout, sequence))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_chunks_batch_blocks_and_threads_change_no_bit(isa: str, precision: str) -> None:
    for shape in SHAPES[:2]:
        layout = replace(shape, isa=isa, precision=precision)
        sequence = a_sequence(layout, 290, 45)
        wanted = alone(layout, sequence)
        others = [a_sequence(layout, n, 1, seed=7) for n in (3, 400, 270)]
        for threads, cuts, seed in [(1, [], 1), (2, [1, 14, 40], 2), (4, [7], 3)]:
            batch = Batch(layout, [*others[:threads], sequence], seed=seed)
            got = batch.run([*[[]] * min(threads, 3), cuts], threads)
            assert_same(got[-1], wanted)


@settings(max_examples=40)
@given(data=st.data())
def test_no_bit_depends_on_what_else_is_computed(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([1, 3, 5, 8]), "heads to each KV head")
    kv_heads = data.draw(st.integers(1, 2), "KV heads")
    layout = Layout(
        precision=data.draw(st.sampled_from(PRECISIONS)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        dim=data.draw(st.sampled_from([16, 48, 64])),
        block=data.draw(st.sampled_from([16, 32])),
        window=data.draw(st.sampled_from([0, 0, 1, 33, 260])),
        softcap=data.draw(st.sampled_from([0.0, 0.0, 3.0])),
    )
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 800), st.integers(1, 60)), max_size=3))
    sequences = [a_sequence(layout, max(size), min(size), seed=i) for i, size in enumerate(sizes)]
    sequences.append(a_sequence(layout, 530, 40))
    cuts = [data.draw(st.lists(st.integers(0, len(each.q)), max_size=4)) for each in sequences]
    batch = Batch(layout, sequences, seed=data.draw(st.integers(0, 99)))
    got = batch.run(cuts, data.draw(st.sampled_from([1, 2, 3, 8]), "threads"))
    for sequence, rows in zip(sequences, got, strict=True):
        assert_same(rows, alone(layout, sequence))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("window", [0, 20])
def test_what_lies_in_free_slots_reaches_no_row(isa: str, precision: str, window: int) -> None:
    layout = Layout(precision=precision, isa=isa, window=window)
    sequences = [a_sequence(layout, 37, 5), a_sequence(layout, 259, 4)]
    clean = Batch(layout, sequences, rubbish=0).run()
    for rubbish in (0xFF, 0x7F, 0xA5):
        for got, wanted in zip(Batch(layout, sequences, rubbish=rubbish).run(), clean, strict=True):
            assert np.isfinite(got).all()
            assert_same(got, wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_bad_query_shows_in_its_own_row_and_head(precision: str, isa: str, bad: float) -> None:
    layout = Layout(precision=precision, isa=isa, heads=4, kv_heads=2)
    sequences = [a_sequence(layout, 280, 6), a_sequence(layout, 20, 3)]
    wanted = Batch(layout, sequences).run()
    sequences[0].q[2, 1, 5] = bad
    got = Batch(layout, sequences).run()
    assert np.isnan(got[0][2, 1]).all()
    wanted[0][2, 1] = got[0][2, 1]
    for one, other in zip(got, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_in_a_token_shows_in_the_rows_that_see_it(precision: str, isa: str, part: str) -> None:
    layout = Layout(precision=precision, isa=isa, heads=4, kv_heads=2, window=9)
    sequences = [a_sequence(layout, 275, 30), a_sequence(layout, 275, 30, seed=1)]
    wanted = Batch(layout, sequences).run()
    getattr(sequences[0], part)[250, 1, 3] = np.nan
    got = Batch(layout, sequences).run()
    rows = np.arange(245, 275)
    for row in rows:
        for head in range(4):
            sees = head >= 2 and 250 <= row < 259
            one, other = got[0][row - 245, head], wanted[0][row - 245, head]
            if sees:
                assert np.isnan(one).any()
            else:
                assert_same(one, other)
    assert_same(got[1], wanted[1])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_shared_prefix_is_read_from_the_same_blocks(precision: str) -> None:
    layout = Layout(precision=precision)
    first = a_sequence(layout, 300, 4)
    second = a_sequence(layout, 300, 4, seed=1)
    second.k[:288], second.v[:288] = first.k[:288], first.v[:288]
    apart = Batch(layout, [first, second])
    shared = Batch(layout, [first, second])
    shared.tables[1][:18] = shared.tables[0][:18]
    for got, wanted in zip(shared.run(threads=2), apart.run(), strict=True):
        assert_same(got, wanted)


def test_a_query_of_zeros_takes_the_mean() -> None:
    for precision in PRECISIONS:
        layout = Layout(precision=precision)
        sequence = a_sequence(layout, 300, 2, sharpness=0.0)
        got = Batch(layout, [sequence]).run()[0]
        mean = sequence.v[:300, 0].mean(axis=0)
        np.testing.assert_allclose(got[1, 0], mean, atol=3e-3)


def test_large_scores_do_not_overflow() -> None:
    layout = Layout()
    sequence = a_sequence(layout, 300, 2, sharpness=1e6)
    best = np.einsum("hd,td->ht", sequence.q[1], sequence.k[:, 0]).argmax(axis=1)
    got = Batch(layout, [sequence]).run()[0][1]
    np.testing.assert_allclose(got, sequence.v[best, 0], rtol=1e-6)


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("dim", [16, 64, 80, 256])
def test_records_are_as_large_as_they_must_be(dim: int, block: int) -> None:
    for precision, size in [("float32", 4), ("bfloat16", 2), ("int8", 1)]:
        scales = 8 * block if precision == "int8" else 0
        record = native.record_bytes(ISAS[0], precision, block, dim)
        assert record == 2 * block * dim * size + scales
        assert record % 64 == 0
