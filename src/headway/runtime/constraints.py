"""What constraints allow, asked for while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headway.runtime.inputs import SampleRow

__all__ = ["ConstraintThread", "constrain"]

Bits = npt.NDArray[np.bool_]


class ConstraintThread:
    """Asks in a thread of its own, one row after another: a constraint is for one thread.

    Args:
        vocab_size: of the logits that are sampled from.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headway-constraints")

    def submit(self, rows: Sequence[SampleRow]) -> Callable[[], Sequence[SampleRow]]:
        """Begins; what is returned waits for the rows with what each of them allows."""
        if all(row.sample.constraint is None for row in rows):
            return lambda: rows
        return self._thread.submit(constrain, rows, self._vocab_size).result


def constrain(rows: Sequence[SampleRow], vocab_size: int) -> list[SampleRow]:
    """The same rows, with what their constraints allow."""
    return [row if row.sample.constraint is None else _ask(row, vocab_size) for row in rows]


def _ask(row: SampleRow, vocab_size: int) -> SampleRow:
    assert row.sample.constraint is not None
    try:
        words = row.sample.constraint.allowed(row.output_ids)
    except ValueError as error:
        return row._replace(mask=np.full(vocab_size, -np.inf, np.float32), failure=str(error))
    bits = np.unpackbits(np.frombuffer(words, np.uint8), count=vocab_size, bitorder="little")
    allowed = _unsuppressed(bits.view(np.bool_), row.sample.suppressed)
    return row._replace(mask=np.where(allowed, np.float32(0), np.float32(-np.inf)))


def _unsuppressed(allowed: Bits, suppressed: Sequence[int]) -> Bits:
    """Without the suppressed tokens, unless there are no others."""
    kept = allowed.copy()
    kept[list(suppressed)] = False
    return kept if kept.any() else allowed
