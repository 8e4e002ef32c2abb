"""A plan as index tensors, built once a step and used by every layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.plan import Chunk, StepPlan
from headway.runtime.inputs import OutputRows
from headway.runtime.torch.kv_store import KVStore

__all__ = ["AttentionGroup", "Batch", "BatchBuilder"]

Ids = npt.NDArray[np.int64]

_FEW_TOKENS = 8
"""Chunks of up to this many tokens attend together, as many as have equally many: those that
decode, with and without drafts."""
_GROUP_BYTES = 4 << 20
"""K and V that one group of decoding sequences reads: the gathered copy should stay in L2/L3."""
_SHORT_BLOCKS = 8
"""Contexts up to this long share a group whatever their lengths: padding them costs little."""
_MIN_PIECE = 256
"""Rows that a prefill chunk is cut into at least, where a window makes cutting worth it."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows that attend in one call: equally many, and few, of each of several sequences, or rows
    of one chunk."""

    rows: slice
    """Of the batch's tokens."""
    num_sequences: int
    kv_rows: Tensor
    """`KVStore.block_rows` of the blocks that the rows see, of each sequence as many: padded
    with its first."""
    context: int
    """Keys to read of each sequence, at most those gathered."""
    mask: Tensor | None
    """Added to the scores: [1, sequences, queries, context], where the queries of a sequence
    are those that share a KV head, token by token, or 1 that stands for all where each has one
    token; of a prefill chunk [1, 1, tokens, context], or None where its rows begin their sequence
    and see all of it, so that it is plainly causal. (PyTorch falls back from its fused attention
    on a mask of 3 dimensions.)"""

    @property
    def tokens_each(self) -> int:
        """Rows of each sequence."""
        num_rows: int = self.rows.stop - self.rows.start
        return num_rows // self.num_sequences

    @property
    def is_prefill(self) -> bool:
        return self.num_sequences == 1 and self.tokens_each > 1


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tokens: chunks of few tokens first, and of equally many the longest contexts."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slot_rows: Tensor  # [tokens, 2 * kv_heads]
    groups: Mapping[int | None, tuple[AttentionGroup, ...]]
    """Of all rows, by the window of a layer's attention; the same object for windows that no
    context of the batch exceeds."""
    output_rows: Tensor
    """[rows] Rows whose logits are wanted, in the order of `OutputRows`."""


class BatchBuilder:
    """Turns plans into batches; builds in NumPy and copies each tensor to the device once.

    `windows` are those of the model's layers, `queries` the heads that share a KV head.
    """

    def __init__(
        self,
        store: KVStore,
        windows: Collection[int | None],
        *,
        queries: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._store = store
        self._windows = windows
        self._queries = queries
        self._device = device
        self._dtype = dtype

    def build(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Batch:
        """`known` are the plan's tokens by chunk, those in flight filled in; `rows` are those
        whose logits are wanted."""
        order = sorted(range(len(plan.chunks)), key=lambda i: _shortest_first(plan.chunks[i]))
        chunks = [plan.chunks[i] for i in order]
        tables = [np.array(chunk.block_table, dtype=np.int64) for chunk in chunks]
        first_rows = np.empty(len(chunks), dtype=np.int64)
        first_rows[order] = np.cumsum([0, *(chunk.num_tokens for chunk in chunks[:-1])])
        slots = np.concatenate([self._slots(c, t) for c, t in zip(chunks, tables, strict=True)])
        return Batch(
            token_ids=self._tensor(np.concatenate([np.array(known[i]) for i in order])),
            positions=self._tensor(np.concatenate([np.arange(c.start, c.end) for c in chunks])),
            slot_rows=self._tensor(self._store.slot_rows(slots)),
            groups=self._groups_by_window(chunks, tables),
            output_rows=self._tensor(rows.in_batch(first_rows)),
        )

    def _slots(self, chunk: Chunk, table: Ids) -> Ids:
        block_size = self._store.block_size
        positions = np.arange(chunk.start, chunk.end)
        slots: Ids = table[positions // block_size] * block_size + positions % block_size
        return slots

    def _groups_by_window(
        self, chunks: list[Chunk], tables: list[Ids]
    ) -> dict[int | None, tuple[AttentionGroup, ...]]:
        longest = max(chunk.end for chunk in chunks)
        reaches = {window: min(window or longest, longest) for window in self._windows}
        groups = {
            reach: tuple(self._groups(chunks, tables, reach)) for reach in set(reaches.values())
        }
        return {window: groups[reach] for window, reach in reaches.items()}

    def _groups(
        self, chunks: list[Chunk], tables: list[Ids], window: int
    ) -> Iterator[AttentionGroup]:
        row = first = 0
        for num_tokens, alike in groupby(chunks, key=lambda chunk: chunk.num_tokens):
            contexts = [chunk.end for chunk in alike]
            for part in self._parts(contexts, num_tokens, window):
                of = slice(first + part.start, first + part.stop)
                if num_tokens > 1 and part.stop - part.start == 1:
                    yield from self._prefill_groups(row, chunks[of.start], tables[of.start], window)
                else:
                    yield self._decode_group(row, contexts[part], tables[of], num_tokens, window)
                row += (part.stop - part.start) * num_tokens
            first += len(contexts)

    def _parts(self, contexts: list[int], num_tokens: int, window: int) -> Iterator[slice]:
        """Which of the chunks of so many tokens attend together: those of few tokens where they
        read neither much padding nor too much at once; longest contexts first."""
        most_blocks = max(1, _GROUP_BYTES // self._store.block_bytes(self._dtype))
        if num_tokens > _FEW_TOKENS:
            most_blocks = 1
        reach = window + num_tokens - 1
        widths = [self._num_blocks_seen(context, reach) for context in contexts]
        start = 0
        while start < len(widths):
            longest = widths[start]
            fewest = longest // 2 if longest > _SHORT_BLOCKS else 1
            stop = start + 1
            while (
                stop < len(widths)
                and (stop + 1 - start) * longest <= most_blocks
                and widths[stop] >= fewest
            ):
                stop += 1
            yield slice(start, stop)
            start = stop

    def _decode_group(
        self, row: int, contexts: list[int], tables: list[Ids], num_tokens: int, window: int
    ) -> AttentionGroup:
        """The last `num_tokens` rows of each context, in the batch from `row` on: the last blocks
        of each, as many as the longest needs."""
        block_size = self._store.block_size
        width = self._num_blocks_seen(contexts[0], window + num_tokens - 1)
        ends = [self._num_blocks(context) for context in contexts]
        firsts = [max(0, end - width) for end in ends]
        # A table may go on beyond the context, in blocks that hold anything.
        seen = [table[i:j] for i, j, table in zip(firsts, ends, tables, strict=True)]
        padded = np.stack([np.concatenate((s, np.full(width - len(s), s[0]))) for s in seen])
        lasts = np.array(contexts) - 1 - np.array(firsts) * block_size
        positions = lasts[:, None] + np.arange(1 - num_tokens, 1)  # [sequences, tokens]
        if num_tokens > 1:
            positions = positions.repeat(self._queries, axis=1)
        ages = positions[..., None] - np.arange(width * block_size)
        return AttentionGroup(
            rows=slice(row, row + len(contexts) * num_tokens),
            num_sequences=len(contexts),
            kv_rows=self._tensor(self._store.block_rows(padded)),
            context=width * block_size,
            mask=self._mask(ages, window)[None],
        )

    def _prefill_groups(
        self, row: int, chunk: Chunk, table: Ids, window: int
    ) -> Iterator[AttentionGroup]:
        """Rows of a window's length read two windows at most, not all that the chunk reads."""
        step = max(window, _MIN_PIECE)
        for start in range(chunk.start, chunk.end, step):
            end = min(start + step, chunk.end)
            yield self._prefill_group(row, start, end, table, window)
            row += end - start

    def _prefill_group(
        self, row: int, start: int, end: int, table: Ids, window: int
    ) -> AttentionGroup:
        """The tokens from position `start` to `end`, which are in the batch from `row` on."""
        first = max(0, start + 1 - window) // self._store.block_size
        offset = first * self._store.block_size
        num_tokens, context = end - start, end - offset
        mask = None
        if start or window < end:
            # Row i, column j depends on i - j alone, so the rows are windows over one band.
            band = self._mask(np.arange(end - 1 - offset, start - offset - context, -1), window)
            mask = band.unfold(0, context, 1).flip(0)[None, None]
        return AttentionGroup(
            rows=slice(row, row + num_tokens),
            num_sequences=1,
            kv_rows=self._tensor(
                self._store.block_rows(table[None, first : self._num_blocks(end)])
            ),
            context=context,
            mask=mask,
        )

    def _num_blocks(self, tokens: int) -> int:
        return -(-tokens // self._store.block_size)

    def _num_blocks_seen(self, context: int, window: int) -> int:
        """At most, by the last token; a window may begin and end within a block."""
        return min(self._num_blocks(context), self._num_blocks(window - 1) + 1)

    def _mask(self, ages: Ids, window: int) -> Tensor:
        """0 where a key is as many tokens old as a window sees, -inf elsewhere."""
        hidden = ages.astype(np.uint64) >= window  # negative: of a key yet to come; wraps around
        return self._tensor(np.where(hidden, np.float32(-np.inf), np.float32(0))).to(self._dtype)

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        """Owns the copy where the device is another; from pinned memory, so it need not wait."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _shortest_first(chunk: Chunk) -> tuple[int, int]:
    return (chunk.num_tokens, -chunk.end)
