"""The backend of PyTorch's own operators, on a CPU or a CUDA device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headway.core.plan import StepPlan
from headway.errors import InvalidConfig
from headway.models.spec import DecoderSpec, DecoderWeights
from headway.runtime.inputs import OutputRows
from headway.runtime.sampler import largest
from headway.runtime.torch.batch import BatchBuilder
from headway.runtime.torch.kv_store import KVStore
from headway.runtime.torch.model import Decoder

__all__ = ["EagerBackend"]

_LOGITS_BYTES = 64 << 20
"""Float32 logits held at a time."""
_DTYPES = (torch.float32, torch.bfloat16)


class EagerBackend:
    """A `Backend`: owns the weights on its device and the KV cache.

    Args:
        num_blocks: blocks of the KV cache, allocated at once and zeroed.
        block_size: tokens in a block.
        num_swap_blocks: blocks of the swap space, in host memory (rule P2).
        device: of PyTorch, e.g. `cpu` or `cuda:0`.
        dtype: of weights and activations, float32 or bfloat16.
        kv_cache_dtype: of K and V in the cache; None: as `dtype`.

    Raises `InvalidConfig` for a dtype that it does not run.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        kv_cache_dtype: torch.dtype | None = None,
    ) -> None:
        kv_cache_dtype = kv_cache_dtype or dtype
        for field, value in (("dtype", dtype), ("kv_cache_dtype", kv_cache_dtype)):
            if value not in _DTYPES:
                raise InvalidConfig(field, f"must be one of {_DTYPES}, not {value}")
        self._device = torch.device(device)
        self._hidden_size = spec.hidden_size
        self._rows_at_once = max(1, _LOGITS_BYTES // (4 * spec.vocab_size))
        self._model = Decoder(spec, weights, device=self._device, dtype=dtype)
        self._store = KVStore(
            spec,
            num_blocks=num_blocks,
            block_size=block_size,
            num_swap_blocks=num_swap_blocks,
            device=self._device,
            dtype=kv_cache_dtype,
        )
        windows = {kind.window for kind in spec.attention}
        self._builder = BatchBuilder(
            self._store,
            windows,
            queries=spec.num_heads // spec.num_kv_heads,
            device=self._device,
            dtype=dtype,
        )

    @property
    def num_blocks(self) -> int:
        return self._store.num_blocks

    @property
    def block_size(self) -> int:
        return self._store.block_size

    @property
    def num_swap_blocks(self) -> int:
        return self._store.num_swap_blocks

    @property
    def kv_bytes(self) -> int:
        return self._store.kv_bytes

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        self._store.copy_out(plan.copies_out)
        if to_zero := [*plan.zero_blocks, *_begun_blocks(plan, self.block_size)]:
            self._store.zero(torch.tensor(to_zero, device=self._device))
        self._store.copy_in(plan.copies_in)
        if not plan.chunks:
            return torch.empty((0, self._hidden_size))
        return self._model.forward(self._builder.build(plan, known, rows), self._store)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        parts = [largest(self.logits(part)) for part in torch.split(hidden, self._rows_at_once)]
        tokens, values = zip(*parts, strict=True)
        return torch.cat(tokens), torch.cat(values)

    def block_copy_s(self, timer: Callable[[], float]) -> float:
        return self._store.block_copy_s(timer)


def _begun_blocks(plan: StepPlan, block_size: int) -> list[int]:
    """The blocks that a chunk begins and does not fill: attention gathers whole blocks, and a mask
    does not hide the NaN that may lie in what others left there."""
    lasts = [(chunk, chunk.end // block_size) for chunk in plan.chunks]
    return [
        chunk.block_table[last]
        for chunk, last in lasts
        if chunk.start <= last * block_size < chunk.end
    ]
