"""Whether the kernels keep their promise on this machine: tried, not taken on trust.

Products of a model's own widths, and its attention, are computed in different company; the same
row must be the same bits. Sums of int8 products must be the integers that they stand for, for the
largest there are. Every function returns what is wrong, for a person, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.core.plan import Chunk, StepPlan
from headway.models.spec import DecoderSpec
from headway.runtime.inputs import OutputRows
from headway.runtime.torch.backend import Backend

__all__ = ["KernelSettings", "decoder_fault", "expected_product", "kernel_fault", "rotated"]

Array = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Multiply = Callable[[Array, int], Array]
"""(rows, threads) -> their product with some weights."""

_ROWS = (1, 2, 3, 4, 17, 64, 255)
_LANES = 16
_SAMPLED_PANELS = 8
_POSITIONS, _QUERIES = 300, 20
"""Of the attention: past the first segment of 256, with a chunk at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings:
    """The kernels as an engine uses them."""

    native: Any
    """The extension module."""
    isa: str
    dtype: str
    kv_cache_dtype: str
    block_size: int
    num_threads: int
    max_num_batched_tokens: int


def kernel_fault(kernels: KernelSettings, spec: DecoderSpec) -> str | None:
    """Of products and attention of the model's sizes, with numbers made up; of the channels of a
    product some will do. Takes a fifth of a second."""
    faults = chain(_product_faults(kernels, spec), _attention_faults(kernels, spec))
    return next((fault for fault in faults if fault is not None), None)


def decoder_fault(backend: Backend, spec: DecoderSpec) -> str | None:
    """Of the whole model, on the first blocks of its cache, which hold anything afterwards. Takes
    what a prompt of a thousand tokens takes."""
    block = backend.block_size
    length = min(_POSITIONS, spec.max_position, backend.num_blocks // 2 * block)
    if length < 2:
        return None
    tokens = [(7919 * i + 13) % spec.vocab_size for i in range(length)]
    table = tuple(range(-(-length // block)))
    other_table = tuple(range(len(table), 2 * len(table)))
    whole = _last_logits(backend, [(_chunk("a", tokens, 0, length, table),)])
    cuts = sorted({cut for cut in (0, 1, 3, 20, 37, 101, 256, length - 1, length) if cut <= length})
    chunks = [_chunk("b", tokens, start, end, other_table) for start, end in pairwise(cuts)]
    in_chunks = _last_logits(backend, [(chunk,) for chunk in chunks])
    if not _same(in_chunks, whole):
        return "logits of a prompt in chunks are not those of the whole prompt"
    company = _chunk("c", tokens[::-1], 0, length, other_table)
    beside = _last_logits(backend, [(company, _chunk("a", tokens, length - 1, length, table))])
    if not _same(beside, whole):
        return "logits beside another request are not those alone"
    return None


# ------------------------------------------------------------------ products


def _product_faults(kernels: KernelSettings, spec: DecoderSpec) -> Iterator[str | None]:
    for name, (num_channels, width) in _products(spec).items():
        count = _fewer(num_channels)
        if kernels.dtype == "int8":
            rows, weights = _largest(_ROWS[4], width), _largest(count, width)
            multiply = _product(kernels, rotated(weights))
            exact = _same(multiply(rotated(rows), 1), expected_product(rows, weights))
            yield None if exact else f"{name}: sums of int8 products are not the integers"
        multiply = _product(kernels, _normal(count, width, seed=1))
        different = _company_changes(kernels, multiply, _normal(max(_ROWS), width))
        yield different and f"{name}: {different}"


def _products(spec: DecoderSpec) -> dict[str, tuple[int, int]]:
    """[channels, width] of the products of a layer, and of the head."""
    q_width = spec.num_heads * spec.head_dim
    return {
        "qkv": (q_width + 2 * spec.num_kv_heads * spec.head_dim, spec.hidden_size),
        "o": (spec.hidden_size, q_width),
        "gate and up": (2 * spec.intermediate_size, spec.hidden_size),
        "down": (spec.hidden_size, spec.intermediate_size),
        "head": (spec.vocab_size, spec.hidden_size),
    }


def _fewer(num_channels: int) -> int:
    """So many fewer that what is left of whole tiles at the end stays as it is."""
    panels = -(-num_channels // _LANES)
    left_out = max(0, panels - _SAMPLED_PANELS) // 4 * 4
    return num_channels - left_out * _LANES


def _product(kernels: KernelSettings, weights: Array) -> Multiply:
    product = kernels.native.Product(isa=kernels.isa, precision=kernels.dtype, weights=weights)

    def multiply(rows: Array, num_threads: int) -> Array:
        out = np.empty((len(rows), len(weights)), np.float32)
        product.multiply(rows, out, num_threads)
        return out

    return multiply


def _company_changes(kernels: KernelSettings, multiply: Multiply, rows: Array) -> str | None:
    alone = np.concatenate([multiply(row[None], 1) for row in rows])
    for count in dict.fromkeys((*_ROWS, kernels.max_num_batched_tokens)):
        some = (np.arange(count) + count) % len(rows)
        for num_threads in dict.fromkeys((1, kernels.num_threads)):
            if not _same(multiply(rows[some], num_threads), alone[some]):
                return f"rows differ among {count}, with {num_threads} threads, from each alone"
    return None


def rotated(values: Integers) -> Array:
    """What int8 kernels turn into these integers, a row each with 127 or -127 in it: they multiply
    blocks of a row by a Hadamard matrix H (Sylvester's order), for which H H = size I."""
    size = _rotation_block(values.shape[1])
    blocks = values.reshape(len(values), -1, size).astype(np.float64)
    half = 1
    while half < size:
        pairs = blocks.reshape(*blocks.shape[:2], -1, 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        blocks = np.stack((first + second, first - second), axis=-2).reshape(blocks.shape)
        half *= 2
    return (blocks / size).reshape(values.shape).astype(np.float32)


def expected_product(rows: Integers, weights: Integers) -> Array:
    """Of `rotated(rows)` and `rotated(weights)`: the integers, rounded once to float32, times the
    two scales."""
    exact = (rows @ weights.T).astype(np.float32)
    scale = np.float32(1) / np.sqrt(np.float32(_rotation_block(rows.shape[1])))
    product: Array = exact * scale * scale
    return product


def _rotation_block(width: int) -> int:
    return width & -width


def _largest(count: int, width: int) -> Integers:
    """Rows whose products are the largest there are, of either sign, and others."""
    rng = np.random.default_rng([count, width])
    values = rng.choice([-127, 127], (count, width))
    values[count // 2 :, 1:] = rng.integers(-127, 128, (count - count // 2, width - 1))
    values[0], values[1:2] = 127, -127
    return values


# ------------------------------------------------------------------ attention


def _attention_faults(kernels: KernelSettings, spec: DecoderSpec) -> Iterator[str | None]:
    for window in dict.fromkeys(kind.window or 0 for kind in spec.attention):
        attention = _Attention(kernels, spec, window)
        forwards = tuple(range(attention.num_blocks))
        alone = np.concatenate(
            [attention(forwards, [(i, 1)], 1)[i : i + 1] for i in range(_QUERIES)]
        )
        for blocks in (forwards, forwards[::-1]):
            for num_threads in dict.fromkeys((1, kernels.num_threads)):
                for cut in ([(0, _QUERIES)], [(0, 3), (3, _QUERIES - 3)]):
                    same = _same(attention(blocks, cut, num_threads), alone)
                    yield None if same else f"attention, window {window}: rows differ from alone"


class _Attention:
    """Of `_QUERIES` rows at the end of a made-up sequence."""

    def __init__(self, kernels: KernelSettings, spec: DecoderSpec, window: int) -> None:
        self._kernels = kernels
        self._spec = spec
        self._window = window
        self._cache = {
            "isa": kernels.isa,
            "kv": kernels.kv_cache_dtype,
            "block_size": kernels.block_size,
        }
        self.num_blocks = -(-_POSITIONS // kernels.block_size)
        dim, heads, kv_heads = spec.head_dim, spec.num_heads, spec.num_kv_heads
        self._q = _normal(_QUERIES, heads * dim).reshape(_QUERIES, heads, dim)
        self._k, self._v = (
            _normal(_POSITIONS, kv_heads * dim, seed=seed).reshape(_POSITIONS, kv_heads, dim)
            for seed in (1, 2)
        )

    def __call__(
        self, blocks: Sequence[int], chunks: Sequence[tuple[int, int]], num_threads: int
    ) -> Array:
        """[_QUERIES, heads, dim]; `chunks` are (first row, rows). What is in none stays NaN."""
        native, spec, size = self._kernels.native, self._spec, self._kernels.block_size
        record = native.record_bytes(**self._cache, head_dim=spec.head_dim)
        cache = np.zeros(self.num_blocks * spec.num_kv_heads * record, np.uint8)
        position = np.arange(_POSITIONS)
        table = np.array(blocks, np.int32)
        slots = (table[position // size] * size + position % size).astype(np.int32)
        native.write_kv(**self._cache, cache=cache, slots=slots, k=self._k, v=self._v)
        first = _POSITIONS - _QUERIES
        spans = np.array([(row, count, first + row, 0) for row, count in chunks], np.int32)
        out = np.full(self._q.shape, np.nan, np.float32)
        native.attention(
            **self._cache,
            num_kv_heads=spec.num_kv_heads,
            q=self._q,
            out=out,
            cache=cache,
            spans=spans,
            tables=table,
            scale=spec.attention_scale,
            window=self._window,
            softcap=0.0,
            num_threads=num_threads,
        )
        return out


# ------------------------------------------------------------------ the whole decoder


def _chunk(name: str, tokens: Sequence[int], start: int, end: int, table: tuple[int, ...]) -> Chunk:
    return Chunk(name, start, tuple(tokens[start:end]), table)


def _last_logits(backend: Backend, batches: Sequence[tuple[Chunk, ...]]) -> Array:
    """[vocab] After the last token of the last chunk, the batches being computed in order."""
    for step, chunks in enumerate(batches):
        last = len(chunks) - 1
        row = OutputRows(np.array([last]), np.array([chunks[last].num_tokens - 1]), 1)
        plan = StepPlan(step, chunks)
        hidden = backend.hidden(plan, [chunk.token_ids for chunk in chunks], row)
    logits: Array = backend.logits(hidden)[0].numpy()
    return logits


def _same(one: Array, other: Array) -> bool:
    """Bit for bit, and numbers."""
    return bool(np.isfinite(other).all()) and one.tobytes() == other.tobytes()


def _normal(count: int, width: int, *, seed: int = 0) -> Array:
    return np.random.default_rng([seed, width]).standard_normal((count, width), np.float32)
