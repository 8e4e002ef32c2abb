"""A backend that shows the logits of every token that is sampled, and places blocks anywhere."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headway.core.plan import Chunk, StepPlan
from headway.runtime.inputs import OutputRows
from headway.runtime.torch import Backend

__all__ = ["See", "Watched"]

See = Callable[[Chunk, Sequence[int], int, Tensor], None]
"""Is told of a row of logits: the chunk, its tokens, and after which of them."""


class Watched:
    """A `Backend` before another: shows the logits of what is sampled, and places blocks."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.num_blocks = inner.num_blocks
        self.block_size = inner.block_size
        self.num_swap_blocks = inner.num_swap_blocks
        self.kv_bytes = inner.kv_bytes
        self.see: See = lambda *_: None
        self._coming: dict[bytes, deque[tuple[Chunk, Sequence[int], int]]] = {}
        """By the hidden state of a row that is to be sampled, what `see` is to be told of it."""
        self.place(None)

    def place(self, rng: random.Random | None) -> None:
        """From here on, each block of a plan is another one; without `rng` it is itself."""
        self._where = list(range(self.num_blocks))
        if rng is not None:
            rng.shuffle(self._where)
        self._tables: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        hidden = self._inner.hidden(self._placed(plan), known, rows)
        self._coming = defaultdict(deque)
        for state, chunk, offset in zip(
            _bytes_of(hidden[: rows.num_samples]), rows.chunks, rows.offsets, strict=False
        ):
            self._coming[state].append((plan.chunks[chunk], known[chunk], int(offset)))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._inner.logits(hidden)
        for state, row in zip(_bytes_of(hidden), logits, strict=True):
            if coming := self._coming.get(state):
                self.see(*coming.popleft(), row.clone())
        return logits

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What is told of is all logits, of which the likeliest must be the largest."""
        tokens, values = self._inner.likeliest(hidden)
        logits = self.logits(hidden)
        assert torch.equal(tokens, logits.argmax(dim=-1))
        assert torch.equal(values, logits.amax(dim=-1))
        return tokens, values

    def block_copy_s(self, timer: Callable[[], float]) -> float:
        return self._inner.block_copy_s(timer)

    def _placed(self, plan: StepPlan) -> StepPlan:
        where = self._where
        return replace(
            plan,
            chunks=tuple(chunk._replace(block_table=self._table(chunk)) for chunk in plan.chunks),
            zero_blocks=tuple(where[block] for block in plan.zero_blocks),
            copies_out=tuple((where[block], slot) for block, slot in plan.copies_out),
            copies_in=tuple((slot, where[block]) for slot, block in plan.copies_in),
        )

    def _table(self, chunk: Chunk) -> tuple[int, ...]:
        """The same object as long as the plan's is."""
        table, placed = self._tables.get(chunk.request_id, ((), ()))
        if table is not chunk.block_table:
            placed = tuple(np.array(self._where)[list(chunk.block_table)].tolist())
            self._tables[chunk.request_id] = (chunk.block_table, placed)
        return placed


def _bytes_of(hidden: Tensor) -> list[bytes]:
    """Of each row."""
    if not len(hidden):
        return []  # a view as bytes does not take every empty tensor
    return [row.tobytes() for row in hidden.cpu().contiguous().view(torch.uint8).numpy()]
