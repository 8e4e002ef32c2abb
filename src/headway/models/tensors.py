"""What the formats of tensor files have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["TensorFile", "TensorInfo", "num_elements"]


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

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor `name` as a float32 array of its own, in its shape. Thread-safe.

        Raises `ModelError` when there is no such tensor.
        """
        ...


def num_elements(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape)
