"""Where K and V live: one preallocated tensor, written by slot and read by block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.models.spec import DecoderSpec

__all__ = ["KVStore"]

Ids = npt.NDArray[np.int64]


class KVStore:
    """The paged KV cache: [layers, K and V × kv_heads, blocks, block_size, head_dim].

    With the heads outside of the blocks, the blocks of a sequence gathered for one head are
    one contiguous [context, head_dim] matrix, and K and V come with one gather. In a layer's
    two flat views, by slot and by block, the rows of head h begin at h × the rows of a head.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._heads = np.arange(2 * spec.num_kv_heads)
        shape = (spec.num_layers, len(self._heads), num_blocks, block_size, spec.head_dim)
        self._data = torch.zeros(shape, dtype=dtype, device=device)
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
