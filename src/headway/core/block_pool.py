"""A fixed number of blocks, reference-counted, with a free queue in order of reuse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """Hands out block numbers 0 … num_blocks − 1.

    A block is in the free queue exactly while nobody holds it. `OrderedDict` is the queue:
    every operation here is O(1), the removal from its middle too (rule K5).
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def is_free(self, block: int) -> bool:
        return block in self._free

    def num_free_among(self, blocks: Sequence[int]) -> int:
        return list(map(self._refs.__getitem__, blocks)).count(0)

    def take(self, count: int) -> list[int]:
        """The blocks at the front of the queue, each held once from now on."""
        pop, refs = self._free.popitem, self._refs
        blocks = [pop(last=False)[0] for _ in range(count)]
        for block in blocks:
            refs[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> int:
        """One more holder of each; a free one leaves the queue, wherever in it it is. Returns
        how many were free."""
        refs, num_free = self._refs, len(self._free)
        for block in blocks:
            if refs[block] == 0:
                del self._free[block]
            refs[block] += 1
        return num_free - len(self._free)

    def release(self, blocks: Iterable[int], keep: Container[int]) -> int:
        """One holder of each less. The last one puts a block at the back of the queue to `keep`
        what it holds as long as possible, else at the front (rule K4). Returns how many blocks
        to keep are free by it."""
        refs, free, num_kept = self._refs, self._free, 0
        for block in blocks:
            assert refs[block] > 0, f"block {block} is not held"
            refs[block] -= 1
            if refs[block] == 0:
                free[block] = None
                if block in keep:
                    num_kept += 1
                else:
                    free.move_to_end(block, last=False)
        return num_kept

    def reuse_first(self, block: int) -> None:
        """Moves a free block to the front: it holds nothing worth keeping any more."""
        self._free.move_to_end(block, last=False)

    def check(self) -> None:
        """Rule K9: a block is free exactly while it has no references."""
        for block, refs in enumerate(self._refs):
            assert refs >= 0, f"block {block}: {refs} references"
            assert (refs == 0) == (block in self._free), f"block {block}: {refs} references"
        assert len(self._free) <= self.num_blocks
