"""The executor that serves: PyTorch on a CPU or a CUDA device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.plan import StepPlan, StepResult, TokenLogprobs
from headway.errors import InvalidConfig
from headway.models.spec import DecoderSpec, DecoderWeights
from headway.runtime.inputs import (
    TokensByRequest,
    check_plan,
    fill_in,
    sample_rows,
    sampled_tokens,
    step_result,
)
from headway.runtime.sampler import prompt_logprobs, sample
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
        num_swap_blocks: blocks of the swap space, in host memory (rule P2).
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
        num_swap_blocks: int = 0,
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
            spec,
            num_blocks=num_blocks,
            block_size=block_size,
            num_swap_blocks=num_swap_blocks,
            device=where,
            dtype=kv_cache_dtype,
        )
        windows = {kind.window for kind in spec.attention}
        self._builder = BatchBuilder(self._store, windows, device=where, dtype=dtype)
        self._in_flight: TokensByRequest = {}

    @property
    def kv_bytes(self) -> int:
        """Bytes that the KV cache takes."""
        return self._store.kv_bytes

    @torch.inference_mode()
    def block_copy_s(self, timer: Callable[[], float] = time.perf_counter) -> float:
        """Seconds that one block's copy to the swap space or back takes, measured now. Takes
        some milliseconds; what cache and swap space hold stays."""
        return self._store.block_copy_s(timer)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> StepResult:
        """Computes the plan at once; the handle is its result.

        Raises ValueError for a plan that reaches outside the model or the cache. Whatever
        is raised, the next plan finds the executor as if this one had never been.
        """
        self._check(plan)
        known, errors = fill_in(plan, self._in_flight)
        hidden = self._hidden(plan, known)
        rows = sample_rows(plan, known)
        chunks = [i for i, chunk in enumerate(plan.chunks) if chunk.sample is not None]
        tokens: list[int | None] = [None] * len(plan.chunks)
        logprobs: dict[int, TokenLogprobs] = {}
        for part, logits in self._logits(hidden[: len(rows)]):
            drawn = sample(logits, rows[part])
            for index, token in zip(chunks[part], drawn.token_ids, strict=True):
                tokens[index] = token
            for row, reason in drawn.errors.items():
                errors.setdefault(chunks[part][row], reason)
            logprobs |= {chunks[part][row]: entry for row, entry in drawn.logprobs.items()}
        prompts = self._prompt_logprobs(plan, hidden[len(rows) :])
        result = step_result(plan, tokens, errors, logprobs, prompts)
        self._in_flight = sampled_tokens(plan, result)
        return result

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> npt.NDArray[np.float32]:
        """What `submit` samples from: [rows, vocab], a row per chunk with a sample, in order.

        Writes the KV cache as `submit` does.
        """
        self._check(plan)
        known, _ = fill_in(plan, self._in_flight)
        num_samples = sum(chunk.sample is not None for chunk in plan.chunks)
        hidden = self._hidden(plan, known)[:num_samples]
        slices = [logits.cpu().numpy() for _, logits in self._logits(hidden)]
        return np.concatenate((np.empty((0, self._spec.vocab_size), np.float32), *slices))

    def _check(self, plan: StepPlan) -> None:
        check_plan(
            plan,
            self._spec,
            num_blocks=self._store.num_blocks,
            block_size=self._store.block_size,
            num_swap_blocks=self._store.num_swap_blocks,
        )

    def _hidden(self, plan: StepPlan, known: list[tuple[int, ...]]) -> Tensor:
        """[rows, hidden] of the samples, then of the prompt rows, each in the plan's order."""
        self._store.copy_out(plan.copies_out)
        if plan.zero_blocks:
            self._store.zero(torch.tensor(plan.zero_blocks, device=self._device))
        self._store.copy_in(plan.copies_in)
        if not plan.chunks:
            return torch.empty((0, self._spec.hidden_size))
        return self._model.forward(self._builder.build(plan, known), self._store)

    def _prompt_logprobs(
        self, plan: StepPlan, hidden: Tensor
    ) -> dict[int, tuple[TokenLogprobs, ...]]:
        """By chunk; `hidden` are the states of all prompt rows."""
        found: dict[int, tuple[TokenLogprobs, ...]] = {}
        for index, chunk in enumerate(plan.chunks):
            if (asked := chunk.prompt_rows) is None:
                continue
            own, hidden = hidden.tensor_split((len(asked.token_ids),))
            found[index] = tuple(
                entry
                for part, logits in self._logits(own)
                for entry in prompt_logprobs(logits, asked.token_ids[part], asked.num_top)
            )
        return found

    def _logits(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The logits of so many rows at a time that they stay small, and which rows they are."""
        rows_at_once = max(1, _LOGITS_BYTES // (4 * self._spec.vocab_size))
        for begin in range(0, len(hidden), rows_at_once):
            rows = slice(begin, begin + rows_at_once)
            yield rows, self._model.logits(hidden[rows])
