"""KV memory in blocks of bytes, the swap space, and the block tables of those who run."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from headway.core.plan import Chunk
from headway.runtime.timing import median_s

__all__ = ["BlockTables", "PagedMemory"]

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int32]

_TIMED_BYTES = 2 << 20
"""Copied to measure what a copy takes."""


class PagedMemory:
    """The KV cache [layers, blocks, block_bytes] and the swap space [slots, layers, block_bytes].

    What the bytes mean is the kernels' business (csrc/attention.h); zeros are a block of zeros.
    Memory that was never written is not resident.
    """

    def __init__(
        self, *, num_layers: int, num_blocks: int, block_bytes: int, num_swap_blocks: int
    ) -> None:
        self.data = _zeros((num_layers, num_blocks, block_bytes))
        self._by_block = self.data.swapaxes(0, 1)
        self._swapped = _zeros((num_swap_blocks, num_layers, block_bytes))

    def zero(self, blocks: Sequence[int]) -> None:
        self.data[:, list(blocks)] = 0

    def copy_out(self, copies: Iterable[tuple[int, int]]) -> None:
        """(block, swap slot): to the swap space."""
        for block, slot in copies:
            self._swapped[slot] = self._by_block[block]

    def copy_in(self, copies: Iterable[tuple[int, int]]) -> None:
        """(swap slot, block): back from the swap space."""
        for slot, block in copies:
            self._by_block[block] = self._swapped[slot]

    def block_copy_s(self, timer: Callable[[], float]) -> float:
        """Seconds that a block's copy takes, the mean of out and in. What is held stays."""
        count = min(len(self._by_block), max(1, _TIMED_BYTES // self._by_block[0].nbytes))
        blocks = self._by_block[:count]
        scratch = np.empty(blocks.shape, np.uint8)

        def there_and_back() -> None:
            for block, copy in zip(blocks, scratch, strict=True):
                copy[...] = block
            for block, copy in zip(blocks, scratch, strict=True):
                block[...] = copy

        copies: int = 2 * count
        return median_s(there_and_back, timer) / copies


class BlockTables:
    """The block tables of the requests in recent plans, one row of an array for each.

    A row is written again only when its request has another table: a plan holds the same tuple
    as long as nothing changed.
    """

    def __init__(self, num_rows: int, num_blocks: int) -> None:
        self.data: Ids = np.zeros((num_rows, num_blocks), np.int32)
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._free = list(range(num_rows))

    def rows(self, chunks: Sequence[Chunk]) -> list[int]:
        """The row of each chunk's table, written where it is new."""
        if len(self._free) < len(chunks):
            self._forget(chunks)
        return [self._row(chunk) for chunk in chunks]

    def _row(self, chunk: Chunk) -> int:
        row, table = self._held.get(chunk.request_id, (-1, ()))
        if table is chunk.block_table:
            return row
        if row < 0:
            row = self._free.pop()
        self.data[row, : len(chunk.block_table)] = chunk.block_table
        self._held[chunk.request_id] = row, chunk.block_table
        return row

    def _forget(self, chunks: Sequence[Chunk]) -> None:
        """Frees the rows of those who are not in the plan; makes more where these do not do."""
        staying = {chunk.request_id for chunk in chunks}
        for request_id in self._held.keys() - staying:
            self._free.append(self._held.pop(request_id)[0])
        lacking = len(staying) - len(self._held) - len(self._free)
        if lacking > 0:
            count, width = self.data.shape
            more = max(lacking, count)
            self.data = np.concatenate((self.data, np.zeros((more, width), np.int32)))
            self._free.extend(range(count, count + more))


def _zeros(shape: tuple[int, ...]) -> Bytes:
    """Aligned to a page, and touched nowhere yet. Private: large pages are for no other."""
    size = int(np.prod(shape))
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size).reshape(shape)


_LARGE = 64 << 20
"""Memory of this size gets large pages: fewer translations to look up."""
