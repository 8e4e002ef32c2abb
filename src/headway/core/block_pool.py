"""A fixed number of blocks, reference-counted, with a free queue in order of reuse."""

from __future__ import annotations

from collections import OrderedDict

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

    def take(self) -> int:
        """The block at the front of the queue, held once from now on."""
        block, _ = self._free.popitem(last=False)
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder; a free block leaves the queue, wherever in it it is."""
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def release(self, block: int, *, keep: bool) -> None:
        """One holder less. The last one puts the block at the back of the queue to `keep` what
        it holds as long as possible, else at the front (rule K4)."""
        assert self._refs[block] > 0, f"block {block} is not held"
        self._refs[block] -= 1
        if self._refs[block] == 0:
            self._free[block] = None
            if not keep:
                self._free.move_to_end(block, last=False)

    def reuse_first(self, block: int) -> None:
        """Moves a free block to the front: it holds nothing worth keeping any more."""
        self._free.move_to_end(block, last=False)

    def check(self) -> None:
        """Rule K9: a block is free exactly while it has no references."""
        for block, refs in enumerate(self._refs):
            assert refs >= 0, f"block {block}: {refs} references"
            assert (refs == 0) == (block in self._free), f"block {block}: {refs} references"
        assert len(self._free) <= self.num_blocks
