"""A plan as index tensors, built once a step and used by every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.plan import Chunk, StepPlan
from headway.runtime.torch.kv_store import KVStore

__all__ = ["AttentionGroup", "Batch", "BatchBuilder"]

Ids = npt.NDArray[np.int64]

_GROUP_BYTES = 4 << 20
"""K and V that one group of decode rows reads: the gathered copy should stay in L2/L3."""
_SHORT_BLOCKS = 8
"""Rows up to this long share a group whatever their lengths: padding them costs little."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows that attend in one call: one row of each of several sequences, or one prefill chunk."""

    rows: slice
    """Of the batch's tokens."""
    num_sequences: int
    kv_rows: Tensor
    """`KVStore.block_rows` of the sequences, padded to the longest with their first block."""
    context: int
    """Keys to read of each sequence, at most those gathered."""
    mask: Tensor | None
    """Added to the scores: [1, sequences, 1, context], or [1, 1, tokens, context] of a prefill
    chunk; None where the chunk begins its sequence, so that it is plainly causal. (PyTorch
    falls back from its fused attention on a mask of 3 dimensions.)"""

    @property
    def is_prefill(self) -> bool:
        num_rows: int = self.rows.stop - self.rows.start
        return num_rows > self.num_sequences


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tokens: decode rows first, longest context first, then the prefill chunks."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slot_rows: Tensor  # [tokens, 2 * kv_heads]
    groups: tuple[AttentionGroup, ...]
    sample_rows: Tensor  # [chunks with a sample], in the plan's order


class BatchBuilder:
    """Turns plans into batches; builds in NumPy and copies each tensor to the device once."""

    def __init__(self, store: KVStore, *, device: torch.device, dtype: torch.dtype) -> None:
        self._store = store
        self._device = device
        self._dtype = dtype

    def build(self, plan: StepPlan, known: list[tuple[int, ...]]) -> Batch:
        """`known` are the plan's tokens by chunk, those in flight filled in."""
        order = sorted(range(len(plan.chunks)), key=lambda i: _decode_first(plan.chunks[i]))
        chunks = [plan.chunks[i] for i in order]
        tables = [np.array(chunk.block_table, dtype=np.int64) for chunk in chunks]
        ends = np.cumsum([chunk.num_tokens for chunk in chunks])
        positions = np.concatenate([np.arange(c.start, c.end) for c in chunks])
        slots = np.concatenate([self._slots(c, t) for c, t in zip(chunks, tables, strict=True)])
        last_row = dict(zip(order, ends - 1, strict=True))
        sample_rows = [last_row[i] for i, c in enumerate(plan.chunks) if c.sample is not None]
        return Batch(
            token_ids=self._tensor(np.concatenate([np.array(known[i]) for i in order])),
            positions=self._tensor(positions),
            slot_rows=self._tensor(self._store.slot_rows(slots)),
            groups=tuple(self._groups(chunks, tables)),
            sample_rows=self._tensor(np.array(sample_rows, dtype=np.int64)),
        )

    def _slots(self, chunk: Chunk, table: Ids) -> Ids:
        block_size = self._store.block_size
        positions = np.arange(chunk.start, chunk.end)
        slots: Ids = table[positions // block_size] * block_size + positions % block_size
        return slots

    def _groups(self, chunks: list[Chunk], tables: list[Ids]) -> Iterator[AttentionGroup]:
        num_decodes = sum(chunk.num_tokens == 1 for chunk in chunks)
        contexts = [chunk.end for chunk in chunks]
        for rows in self._decode_rows(contexts[:num_decodes]):
            yield self._decode_group(rows, contexts[rows], tables[rows])
        row = num_decodes
        for chunk, table in zip(chunks[num_decodes:], tables[num_decodes:], strict=True):
            yield self._prefill_group(row, chunk, table)
            row += chunk.num_tokens

    def _decode_rows(self, contexts: list[int]) -> Iterator[slice]:
        """Cuts rows, longest first, so that no group reads much padding or too much at once."""
        most_blocks = max(1, _GROUP_BYTES // self._store.block_bytes(self._dtype))
        start = 0
        while start < len(contexts):
            longest = self._num_blocks(contexts[start])
            fewest = longest // 2 if longest > _SHORT_BLOCKS else 1
            stop = start + 1
            while (
                stop < len(contexts)
                and (stop + 1 - start) * longest <= most_blocks
                and self._num_blocks(contexts[stop]) >= fewest
            ):
                stop += 1
            yield slice(start, stop)
            start = stop

    def _decode_group(self, rows: slice, contexts: list[int], tables: list[Ids]) -> AttentionGroup:
        width = self._num_blocks(contexts[0])
        padded = np.stack(
            [np.concatenate((t[:width], np.full(max(0, width - len(t)), t[0]))) for t in tables]
        )
        context = width * self._store.block_size
        hidden = np.arange(context) >= np.array(contexts)[:, None]
        return AttentionGroup(
            rows=rows,
            num_sequences=len(contexts),
            kv_rows=self._tensor(self._store.block_rows(padded)),
            context=context,
            mask=self._mask(hidden[None, :, None]),
        )

    def _prefill_group(self, row: int, chunk: Chunk, table: Ids) -> AttentionGroup:
        hidden = np.arange(chunk.end) > np.arange(chunk.start, chunk.end)[:, None]
        return AttentionGroup(
            rows=slice(row, row + chunk.num_tokens),
            num_sequences=1,
            kv_rows=self._tensor(
                self._store.block_rows(table[None, : self._num_blocks(chunk.end)])
            ),
            context=chunk.end,
            mask=self._mask(hidden[None, None]) if chunk.start else None,
        )

    def _num_blocks(self, tokens: int) -> int:
        return -(-tokens // self._store.block_size)

    def _mask(self, hidden: npt.NDArray[np.bool_]) -> Tensor:
        mask = np.zeros(hidden.shape, dtype=np.float32)
        mask[hidden] = -np.inf
        return self._tensor(mask).to(self._dtype)

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        """Owns the copy where the device is another; from pinned memory, so it need not wait."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _decode_first(chunk: Chunk) -> tuple[bool, int]:
    return (chunk.num_tokens > 1, -chunk.end)
