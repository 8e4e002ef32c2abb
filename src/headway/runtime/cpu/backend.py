"""A decoder in the C++ kernels, as a backend of the PyTorch executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.plan import StepPlan
from headway.models.spec import (
    DecoderSpec,
    DecoderWeights,
    LayerWeights,
    StoredMatrix,
    row_parts,
)
from headway.runtime.cpu.paged import BlockTables, PagedMemory
from headway.runtime.inputs import OutputRows

__all__ = ["KernelBackend", "why_not"]

Array = npt.NDArray[np.float32]

_OPTIONAL = ("q_bias", "k_bias", "v_bias", "q_norm", "k_norm")
_WEIGHTS = (
    *("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"),
    *(*_OPTIONAL, "attention_post_norm", "mlp_post_norm"),
)
_LANES = 16


def why_not(spec: DecoderSpec) -> str | None:
    """Why the kernels do not run a model; None: they do."""
    widths = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "head_dim": spec.head_dim,
    }
    for name, width in widths.items():
        if width % _LANES:
            return f"{name} is {width}, no multiple of {_LANES}"
    return None


class KernelBackend:
    """A `Backend`: owns packed weights and the KV cache.

    Args:
        kernels: the extension module.
        dtype: of the products: `float32`, `bfloat16` or `int8`.
        kv_cache_dtype: of K and V in the cache, one of the same.
        num_threads: that compute a step.
        isa: the instruction set, one of `kernels.isas()`; None: the best.
    """

    def __init__(
        self,
        kernels: Any,
        spec: DecoderSpec,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        dtype: str = "int8",
        kv_cache_dtype: str | None = None,
        num_threads: int = 1,
        isa: str | None = None,
    ) -> None:
        assert why_not(spec) is None
        self._num_threads = num_threads
        self._hidden_size = spec.hidden_size
        self._vocab_size = spec.vocab_size
        self._phases: tuple[str, ...] = tuple(kernels.PHASES)
        self.isa = isa or kernels.isas()[0]
        self._decoder = kernels.Decoder(
            isa=self.isa,
            weights=dtype,
            kv=kv_cache_dtype or dtype,
            num_layers=spec.num_layers,
            hidden=spec.hidden_size,
            intermediate=spec.intermediate_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            vocab=spec.vocab_size,
            norm_eps=spec.rms_norm_eps,
            attention_scale=spec.attention_scale,
            embedding_scale=spec.embedding_scale,
            gelu=spec.activation == "gelu_tanh",
            block_size=block_size,
        )
        self._load(spec, weights)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_swap_blocks = num_swap_blocks
        self._memory = PagedMemory(
            num_layers=spec.num_layers,
            num_blocks=num_blocks,
            block_bytes=self._decoder.block_bytes,
            num_swap_blocks=num_swap_blocks,
        )
        longest = min(num_blocks, -(-spec.max_position // block_size))
        self._tables = BlockTables(2 * _LANES, longest)

    @property
    def kv_bytes(self) -> int:
        return self._memory.data.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        size: int = self._decoder.weight_bytes
        return size

    def phase_seconds(self) -> Mapping[str, float]:
        """Where the time of all steps went so far."""
        return dict(zip(self._phases, self._decoder.phase_seconds(), strict=True))

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        """As `Backend.hidden`; the states are those before the final norm."""
        self._memory.copy_out(plan.copies_out)
        if plan.zero_blocks:
            self._memory.zero(plan.zero_blocks)
        self._memory.copy_in(plan.copies_in)
        states = np.empty((len(rows.chunks), self._hidden_size), np.float32)
        if plan.chunks:
            self._forward(plan, known, rows, states)
        return torch.from_numpy(states)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = np.empty((len(hidden), self._vocab_size), np.float32)
        if len(hidden):
            self._decoder.logits(hidden.numpy(), logits, self._num_threads)
        return torch.from_numpy(logits)

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """As `Backend.likeliest`, without writing logits down."""
        tokens = np.empty(len(hidden), np.int64)
        values = np.empty(len(hidden), np.float32)
        if len(hidden):
            self._decoder.likeliest(hidden.numpy(), tokens, values, self._num_threads)
        return torch.from_numpy(tokens), torch.from_numpy(values)

    def block_copy_s(self, timer: Callable[[], float]) -> float:
        return self._memory.block_copy_s(timer)

    def _forward(
        self,
        plan: StepPlan,
        known: list[tuple[int, ...]],
        rows: OutputRows,
        states: npt.NDArray[np.float32],
    ) -> None:
        chunks = plan.chunks
        width = self._tables.data.shape[1]
        counts = np.fromiter(map(len, known), np.int64, len(known))
        first_rows = np.cumsum(counts) - counts
        spans = np.empty((len(chunks), 4), np.int32)
        spans[:, 0] = first_rows
        spans[:, 1] = counts
        spans[:, 2] = [chunk.start for chunk in chunks]
        spans[:, 3] = self._tables.rows(chunks)
        spans[:, 3] *= width
        self._decoder.forward(
            np.fromiter(chain.from_iterable(known), np.int32, int(counts.sum())),
            spans,
            self._tables.data,
            rows.in_batch(first_rows).astype(np.int32),
            self._memory.data,
            states,
            self._num_threads,
        )

    def _load(self, spec: DecoderSpec, weights: DecoderWeights) -> None:
        ropes = list(dict.fromkeys(kind.rope for kind in spec.attention))
        for rope in ropes:
            self._decoder.add_rope(np.array(rope.frequencies), rope.magnitude)
        kinds = iter(spec.attention)

        # `map` lets go of a layer before it takes the next, unlike a loop's variable.
        def add(layer: LayerWeights) -> None:
            kind = next(kinds)
            self._decoder.add_layer(
                **{name: getattr(layer, name) for name in _WEIGHTS},
                rope=ropes.index(kind.rope),
                window=kind.window or 0,
            )

        for _ in map(add, weights.layers):
            pass
        self._decoder.set_final_norm(weights.final_norm)
        _set_rows(self._decoder.set_head, weights.head)
        if weights.head is not weights.embedding:
            _set_rows(self._decoder.set_embedding, weights.embedding)


def _set_rows(set_at: Callable[[int, Array], None], matrix: Array | StoredMatrix) -> None:
    """Hands its rows on, some at a time."""
    first = 0
    for part in row_parts(matrix):
        set_at(first, part)
        first += len(part)
