"""Where K and V live: one preallocated tensor, written by slot and read by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.models.spec import DecoderSpec
from headway.runtime.timing import median_s

__all__ = ["KVStore"]

Ids = npt.NDArray[np.int64]

_TIMED_BYTES = 2 << 20
"""Copied to measure what a copy takes: little, since each call may wait for a core in use."""


class KVStore:
    """The paged KV cache: [layers, K and V × kv_heads, blocks, block_size, head_dim].

    With the heads outside of the blocks, the blocks of a sequence gathered for one head are
    one contiguous [context, head_dim] matrix, and K and V come with one gather. In a layer's
    two flat views, by slot and by block, the rows of head h begin at h × the rows of a head.

    The swap space is host memory, pinned where the cache is on a CUDA device. There a block is
    contiguous, of all layers together: it is copied by one call, straight from one place to the
    other, and space that was never used never becomes resident (unless it is pinned).
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_swap_blocks = num_swap_blocks
        self._heads = np.arange(2 * spec.num_kv_heads)
        shape = (spec.num_layers, len(self._heads), num_blocks, block_size, spec.head_dim)
        self._data = torch.zeros(shape, dtype=dtype, device=device)
        self._by_block = self._data.permute(2, 0, 1, 3, 4)
        self._swapped = self._host_blocks(num_swap_blocks)
        self._slots = [layer.view(-1, spec.head_dim) for layer in self._data]
        self._blocks = [layer.view(-1, block_size * spec.head_dim) for layer in self._data]
        self._gathered = self._data.new_empty((0, block_size * spec.head_dim))
        self._converted = self._gathered

    @property
    def kv_bytes(self) -> int:
        return self._data.nbytes

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one block of one layer, as `read` gives it."""
        return len(self._heads) * self._gathered.shape[1] * dtype.itemsize

    def slot_rows(self, slots: Ids) -> Ids:
        """Rows for `write`: [tokens] -> [tokens, 2 * kv_heads], the heads of K first."""
        rows: Ids = slots[:, None] + self._heads * (self.num_blocks * self.block_size)
        return rows

    def block_rows(self, tables: Ids) -> Ids:
        """Rows for `read`: [sequences, blocks] -> [2 * kv_heads * sequences * blocks]."""
        rows: Ids = (self._heads[:, None, None] * self.num_blocks + tables).ravel()
        return rows

    def zero(self, blocks: Tensor) -> None:
        self._data.index_fill_(2, blocks, 0.0)

    def copy_out(self, copies: Iterable[tuple[int, int]]) -> None:
        """(block, swap slot): to the swap space.

        A call for each: one for all would gather them first, in memory that is fresh each
        time, which on a CPU is several times slower. On a CUDA device nobody waits for it:
        what reads the slot or overwrites the block comes later in the same stream.
        """
        for block, slot in copies:
            self._swapped[slot].copy_(self._by_block[block], non_blocking=True)

    def copy_in(self, copies: Iterable[tuple[int, int]]) -> None:
        """(swap slot, block): back from the swap space."""
        for slot, block in copies:
            self._by_block[block].copy_(self._swapped[slot], non_blocking=True)

    def block_copy_s(self, timer: Callable[[], float]) -> float:
        """Seconds that a block's copy takes, the mean of out and in. Cache and swap space keep
        what they hold: some blocks go to scratch memory and back."""
        count = min(self.num_blocks, max(1, _TIMED_BYTES // self._by_block[0].nbytes))
        blocks, scratch = self._by_block[:count], self._host_blocks(count)

        def there_and_back() -> None:
            for block, copy in zip(blocks, scratch, strict=True):
                copy.copy_(block, non_blocking=True)
            for block, copy in zip(blocks, scratch, strict=True):
                block.copy_(copy, non_blocking=True)
            if blocks.is_cuda:
                torch.cuda.synchronize(blocks.device)

        return median_s(there_and_back, timer) / (2 * count)

    def write(self, layer: int, rows: Tensor, kv: Tensor) -> None:
        """Stores kv [tokens, 2 * kv_heads, head_dim] at `slot_rows`, in the cache's dtype."""
        self._slots[layer].index_put_((rows,), kv.to(self._data.dtype))

    def read(self, layer: int, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """The blocks at `block_rows`, [rows, block_size * head_dim] in `dtype`.

        The memory is the store's own and is overwritten by the next read: a fresh tensor
        each time would cost more in page faults than the copy itself.
        """
        count = len(rows)
        if count > len(self._gathered):
            width = self._gathered.shape[1]
            self._gathered = self._gathered.new_empty((count, width))
            self._converted = self._gathered
        gathered = torch.index_select(self._blocks[layer], 0, rows, out=self._gathered[:count])
        if gathered.dtype == dtype:
            return gathered
        if self._converted.dtype != dtype:
            self._converted = torch.empty_like(self._gathered, dtype=dtype)
        return self._converted[:count].copy_(gathered)

    def _host_blocks(self, count: int) -> Tensor:
        """Memory for that many blocks, not touched: [blocks, layers, 2 * kv_heads, ...]."""
        shape, on_cuda = (count, *self._by_block.shape[1:]), self._data.is_cuda
        return torch.empty(shape, dtype=self._data.dtype, pin_memory=on_cuda)
