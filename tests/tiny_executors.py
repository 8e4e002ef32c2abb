"""Executors that compute, for tests of what they have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from headway.models.spec import DecoderSpec, DecoderWeights
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import EagerBackend, TorchExecutor
from tiny import TINY, TINY_SPECS, tiny_weights
from tiny_plans import BLOCK_SIZE, NUM_BLOCKS

__all__ = ["WEIGHTS", "each_executor", "each_model", "one_thread", "pytorch", "reference"]

WEIGHTS = {
    name: tiny_weights(spec, tied=name in ("llama", "gemma3")) for name, spec in TINY_SPECS.items()
}
"""By the names of `TINY_SPECS`; some have a head of their own."""


def reference(
    spec: DecoderSpec = TINY, weights: DecoderWeights | None = None, **sizes: Any
) -> ReferenceExecutor:
    return ReferenceExecutor(spec, **_given(spec, weights, sizes))


def pytorch(
    spec: DecoderSpec = TINY, weights: DecoderWeights | None = None, **options: Any
) -> TorchExecutor:
    return TorchExecutor(spec, EagerBackend(spec, **_given(spec, weights, options)))


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread; as it was, afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _given(
    spec: DecoderSpec, weights: DecoderWeights | None, options: dict[str, Any]
) -> dict[str, Any]:
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    return sizes | {"weights": weights or WEIGHTS[spec.architecture]} | options


each_executor = pytest.mark.parametrize("make", [reference, pytorch])
each_model = pytest.mark.parametrize("spec", TINY_SPECS.values(), ids=TINY_SPECS)
