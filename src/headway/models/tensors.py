"""What the formats of tensor files have in common."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["TensorFile", "TensorInfo", "forget_pages", "num_elements"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as it lies in its file."""

    name: str
    shape: tuple[int, ...]
    """In NumPy order: a product's weight is [out, in]."""
    type: str
    """Of its numbers, e.g. `BF16` or `Q4_K`."""
    data: npt.NDArray[np.uint8]
    """[..., bytes per row], read-only, a view of the mapped file."""


class TensorFile(Protocol):
    """Tensors by name, in one file or several."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def size_bytes(self) -> int: ...

    def load(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """The tensor `name` as a float32 array of its own, in its shape; of a matrix, some
        `rows` if they are given. Thread-safe.

        Raises `ModelError` when there is no such tensor.
        """
        ...


def forget_pages(mapping: mmap.mmap) -> None:
    """What was read of a mapped file counts as memory of this process no longer. It stays valid:
    where it is touched again it is mapped again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def num_elements(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape)
