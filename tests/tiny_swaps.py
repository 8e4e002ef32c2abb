"""Plans that swap: the same chunks, while their blocks move to the swap space and back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from headway.core.plan import Chunk, StepPlan
from tiny_plans import BLOCK_SIZE, NUM_BLOCKS

__all__ = ["NUM_SWAP_BLOCKS", "with_swaps"]

NUM_SWAP_BLOCKS = 80


def with_swaps(
    rng: random.Random, plans: Sequence[StepPlan], *, block_size: int = BLOCK_SIZE
) -> Iterator[StepPlan]:
    """The chunks of `plans` in the same batches, and plans of copies alone between them. Whoever
    has no chunk in a plan may be swapped out by it, and comes back on other blocks with its next
    chunk; others take its blocks meanwhile, from that very plan on. Blocks may be zeroed whose
    content nobody needs any more or yet.
    """
    moving = _Moving(rng, plans, block_size)
    for plan in plans:
        if rng.random() < 0.5:
            yield moving.move(())
        yield moving.move(plan.chunks)


class _Moving:
    """Where the blocks of each sequence are; they are named as in the plans without swaps.

    Blocks of several sequences stay where they are, for those that read them there; who was
    swapped out comes back with a copy of its own.
    """

    def __init__(self, rng: random.Random, plans: Sequence[StepPlan], block_size: int) -> None:
        self._rng = rng
        self._block_size = block_size
        self._tables = {c.request_id: c.block_table for plan in plans for c in plan.chunks}
        uses = Counter(block for table in self._tables.values() for block in table)
        self._shared = {block for block, count in uses.items() if count > 1}
        self._free = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
        self._free = [block for block in self._free if block not in self._shared]
        self._where = {
            name: {block: block for block in table if block in self._shared}
            for name, table in self._tables.items()
        }
        self._computed: Counter[str] = Counter()
        self._slots: dict[str, list[int]] = {}
        """Of those that are swapped out."""
        self._free_slots = list(range(NUM_SWAP_BLOCKS))
        self._num_plans = 0

    def move(self, given: Sequence[Chunk]) -> StepPlan:
        names = {chunk.request_id for chunk in given}
        idle = [n for n in sorted(self._computed) if n not in names and n not in self._slots]
        out = [
            pair
            for name in idle
            if self._may_go(name) and self._rng.random() < 0.5
            for pair in self._out(name)
        ]
        back = [pair for chunk in given for pair in self._back(chunk.request_id)]
        self._free_slots += [slot for slot, _ in back]
        chunks = tuple(self._moved(chunk) for chunk in given)
        taken = {block for chunk in chunks for block in chunk.block_table[self._first_new(chunk) :]}
        unneeded = {block for block, _ in out} - self._shared | {block for _, block in back} | taken
        zeroed = tuple(b for b in sorted(unneeded) if self._rng.random() < 0.5)
        for chunk in chunks:
            self._computed[chunk.request_id] = chunk.end
        self._num_plans += 1
        return StepPlan(self._num_plans, chunks, zeroed, tuple(out), tuple(back))

    def _may_go(self, name: str) -> bool:
        """Others find the blocks that it shares complete."""
        num_shared = sum(block in self._shared for block in self._tables[name])
        return self._computed[name] >= num_shared * self._block_size

    def _out(self, name: str) -> list[tuple[int, int]]:
        where = self._where[name]
        held = [
            where[b] for b in self._tables[name][: -(-self._computed[name] // self._block_size)]
        ]
        self._slots[name] = [self._free_slots.pop() for _ in held]
        self._free += [block for block in where.values() if block not in self._shared]
        where.clear()
        return list(zip(held, self._slots[name], strict=True))

    def _back(self, name: str) -> list[tuple[int, int]]:
        slots = self._slots.pop(name, [])
        table = self._tables[name]
        self._where[name].update((block, self._free.pop()) for block in table[: len(slots)])
        return [(slot, self._where[name][b]) for slot, b in zip(slots, table, strict=False)]

    def _moved(self, chunk: Chunk) -> Chunk:
        where, table = self._where[chunk.request_id], []
        for block in self._tables[chunk.request_id][: -(-chunk.end // self._block_size)]:
            if block not in where:
                where[block] = self._free.pop()
            table.append(where[block])
        return chunk._replace(block_table=tuple(table))

    def _first_new(self, chunk: Chunk) -> int:
        """Index of the first of its blocks that holds nothing yet."""
        return -(-chunk.start // self._block_size)
