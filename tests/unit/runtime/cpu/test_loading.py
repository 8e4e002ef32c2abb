"""Packing an embedding and a head that come from their file a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headway.core.plan import StepPlan
from headway.models.spec import AttentionKind, DecoderWeights, Rope
from headway.runtime import kernels

if kernels.why_missing() is not None:
    pytest.skip(f"no kernels: {kernels.why_missing()}", allow_module_level=True)

from headway.runtime.cpu import KernelBackend
from headway.runtime.torch import TorchExecutor
from tiny import TINY, tiny_weights
from tiny_plans import chunk_of

Array = npt.NDArray[np.float32]

# Widths that the kernels have, and 61 tokens: the last panel of 16 channels is not full.
SPEC = replace(
    TINY,
    attention=(AttentionKind(Rope(tuple(500.0 ** (-i / 8) for i in range(8)))),),
    hidden_size=48,
    intermediate_size=80,
    head_dim=16,
)


@dataclass(frozen=True)
class InParts:
    """A `StoredMatrix`; the rows of a part do not end where a panel does."""

    matrix: Array
    rows_at_once: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    def parts(self) -> Iterator[Array]:
        for begin in range(0, len(self.matrix), self.rows_at_once):
            yield self.matrix[begin : begin + self.rows_at_once].copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise AssertionError("the whole matrix was loaded")


def logits(weights: DecoderWeights, dtype: str) -> Array:
    backend = KernelBackend(
        kernels.native, SPEC, weights, num_blocks=4, block_size=16, dtype=dtype, num_threads=2
    )
    plan = StepPlan(0, (chunk_of("a", [3, 60, 0, 17], (0,)),))
    return TorchExecutor(SPEC, backend).logits(plan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows_at_once", [1, 7, 60])
def test_parts_are_packed_as_the_whole_is(dtype: str, tied: bool, rows_at_once: int) -> None:
    weights = tiny_weights(SPEC, tied=tied)
    embedding = InParts(np.asarray(weights.embedding), rows_at_once)
    head = embedding if tied else InParts(np.asarray(weights.head), rows_at_once)
    in_parts = replace(weights, embedding=embedding, head=head)
    np.testing.assert_array_equal(logits(in_parts, dtype), logits(weights, dtype))


def test_rows_past_the_vocabulary_are_refused() -> None:
    weights = tiny_weights(SPEC)
    too_many = InParts(np.zeros((62, 48), np.float32), 31)
    with pytest.raises(ValueError, match="rows: end at 62, not by 61"):
        logits(replace(weights, embedding=too_many, head=too_many), "int8")
