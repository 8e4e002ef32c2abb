"""The executor that serves: PyTorch on a CPU or a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.plan import StepPlan, StepResult
from headway.errors import InvalidConfig
from headway.models.spec import DecoderSpec, DecoderWeights
from headway.runtime.inputs import TokensByRequest, check_plan, fill_in, sampled_tokens
from headway.runtime.sampler import sample
from headway.runtime.torch.batch import BatchBuilder
from headway.runtime.torch.kv_store import KVStore
from headway.runtime.torch.model import Decoder

__all__ = ["TorchExecutor"]

_DTYPES = (torch.float32, torch.bfloat16)
_LOGITS_BYTES = 64 << 20
"""Float32 logits held at a time."""


class TorchExecutor:
    """Runs plans at submission; owns the weights on its device and the KV cache.

    Args:
        num_blocks: blocks of the KV cache, allocated at once and zeroed.
        block_size: tokens in a block.
        device: of PyTorch, e.g. `cpu` or `cuda:0`.
        dtype: of weights and activations, float32 or bfloat16.
        kv_cache_dtype: of K and V in the cache; None: as `dtype`.
        num_threads: CPU threads of PyTorch, a setting of the whole process; None: left alone.

    Raises `InvalidConfig` for a dtype that it does not run.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        kv_cache_dtype: torch.dtype | None = None,
        num_threads: int | None = None,
    ) -> None:
        kv_cache_dtype = kv_cache_dtype or dtype
        for field, value in (("dtype", dtype), ("kv_cache_dtype", kv_cache_dtype)):
            if value not in _DTYPES:
                raise InvalidConfig(field, f"must be one of {_DTYPES}, not {value}")
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        where = torch.device(device)
        self._spec = spec
        self._device = where
        self._model = Decoder(spec, weights, device=where, dtype=dtype)
        self._store = KVStore(
            spec, num_blocks=num_blocks, block_size=block_size, device=where, dtype=kv_cache_dtype
        )
        self._builder = BatchBuilder(self._store, device=where, dtype=dtype)
        self._in_flight: TokensByRequest = {}

    @property
    def kv_bytes(self) -> int:
        """Bytes that the KV cache takes."""
        return self._store.kv_bytes

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> StepResult:
        """Computes the plan at once; the handle is its result.

        Raises ValueError for a plan that reaches outside the model or the cache. Whatever
        is raised, the next plan finds the executor as if this one had never been.
        """
        self._check(plan)
        known, errors = fill_in(plan, self._in_flight)
        sampling = [i for i, chunk in enumerate(plan.chunks) if chunk.sample is not None]
        samples = [chunk.sample for chunk in plan.chunks if chunk.sample is not None]
        tokens: list[int | None] = [None] * len(plan.chunks)
        for begin, logits in self._logits(plan, known):
            drawn, failed = sample(logits, samples[begin : begin + len(logits)])
            for row, token in enumerate(drawn, begin):
                tokens[sampling[row]] = token
            for row, reason in failed.items():
                errors.setdefault(sampling[begin + row], reason)
        for index in errors:
            tokens[index] = None
        self._in_flight = sampled_tokens(plan, tokens)
        return StepResult(step=plan.step, token_ids=tuple(tokens), errors=errors)

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> npt.NDArray[np.float32]:
        """What `submit` samples from: [rows, vocab], a row per chunk with a sample, in order.

        Writes the KV cache as `submit` does.
        """
        self._check(plan)
        known, _ = fill_in(plan, self._in_flight)
        slices = [logits.cpu().numpy() for _, logits in self._logits(plan, known)]
        return np.concatenate((np.empty((0, self._spec.vocab_size), np.float32), *slices))

    def _check(self, plan: StepPlan) -> None:
        check_plan(
            plan,
            self._spec,
            num_blocks=self._store.num_blocks,
            block_size=self._store.block_size,
        )

    def _logits(self, plan: StepPlan, known: list[tuple[int, ...]]) -> Iterator[tuple[int, Tensor]]:
        """Slices of logits, each with the sample that its first row is for."""
        if plan.zero_blocks:
            self._store.zero(torch.tensor(plan.zero_blocks, device=self._device))
        if not plan.chunks:
            return
        batch = self._builder.build(plan, known)
        hidden = self._model.forward(batch, self._store)
        rows_at_once = max(1, _LOGITS_BYTES // (4 * self._spec.vocab_size))
        for begin in range(0, len(hidden), rows_at_once):
            yield begin, self._model.logits(hidden[begin : begin + rows_at_once])
