"""Places for blocks that were copied out of the KV cache (rule P2)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SwapSpace"]


class SwapSpace:
    """A fixed number of slots, each for one block. The executor owns their memory.

    Slots are given back between plans: one plan copies out before it copies in, so what it
    reads it must not write.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """That many slots; None, and nothing taken, where there are not enough."""
        if count > len(self._free):
            return None
        return tuple(self._free.pop() for _ in range(count))

    def give_back(self, slots: Iterable[int]) -> None:
        self._free.extend(slots)

    def check(self, held: Iterable[int]) -> None:
        """Rule K9: a slot is free or held by one request, and nothing else."""
        every = sorted([*self._free, *held])
        assert every == list(range(self.num_slots)), "every swap slot is in one place"
