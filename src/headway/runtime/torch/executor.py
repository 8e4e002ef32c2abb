"""The executor that serves: a backend's logits, sampled in PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.plan import StepPlan, StepResult, TokenLogprobs
from headway.models.spec import DecoderSpec
from headway.runtime.checks import check_plan
from headway.runtime.constraints import ConstraintThread
from headway.runtime.inputs import SampleRow, TokensByRequest, fill_in, output_rows, sample_rows
from headway.runtime.results import SampledRows, sampled_tokens, step_result
from headway.runtime.sampler import likeliest, prompt_logprobs, sample
from headway.runtime.torch.backend import Backend

__all__ = ["TorchExecutor"]

_LOGITS_BYTES = 32 << 20
"""Float32 logits held at a time."""


class TorchExecutor:
    """Runs plans at submission, on a backend that it alone uses."""

    def __init__(self, spec: DecoderSpec, backend: Backend) -> None:
        self._spec = spec
        self.backend = backend
        self._constraints = ConstraintThread(spec.vocab_size)
        self._in_flight: TokensByRequest = {}

    @torch.inference_mode()
    def block_copy_s(self, timer: Callable[[], float] = time.perf_counter) -> float:
        """Seconds that one block's copy to the swap space or back takes, measured now. Takes
        some milliseconds; what cache and swap space hold stays."""
        return self.backend.block_copy_s(timer)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> StepResult:
        """Computes the plan at once; the handle is its result.

        Raises ValueError for a plan that reaches outside the model or the cache. Whatever
        is raised, the next plan finds the executor as if this one had never been.
        """
        self._check(plan)
        known, errors = fill_in(plan, self._in_flight)
        wanted = output_rows(plan)
        rows = self._constraints.submit(sample_rows(plan, known))
        hidden = self.backend.hidden(plan, known, wanted)
        sampled = self._sample(hidden[: wanted.num_samples], rows())
        prompts = self._prompt_logprobs(plan, hidden[wanted.num_samples :])
        result = step_result(plan, sampled, errors, prompts)
        self._in_flight = sampled_tokens(plan, result)
        return result

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> npt.NDArray[np.float32]:
        """What `submit` samples from: [rows, vocab], a row per sampled token, chunk by chunk.

        Writes the KV cache as `submit` does.
        """
        self._check(plan)
        known, _ = fill_in(plan, self._in_flight)
        wanted = output_rows(plan)
        hidden = self.backend.hidden(plan, known, wanted)[: wanted.num_samples]
        slices = [logits.cpu().numpy() for _, logits in self._logits(hidden)]
        return np.concatenate((np.empty((0, self._spec.vocab_size), np.float32), *slices))

    def _sample(self, hidden: Tensor, rows: Sequence[SampleRow]) -> SampledRows:
        """Rows that take the likeliest token have no logits written down."""
        plain = [i for i, row in enumerate(rows) if row.takes_likeliest]
        rest = [i for i, row in enumerate(rows) if not row.takes_likeliest]
        sampled = SampledRows.of(len(rows))
        if plain:
            found = self.backend.likeliest(hidden[plain] if rest else hidden)
            sampled.put(plain, likeliest(*found, [rows[i] for i in plain]))
        for part, logits in self._logits(hidden[rest] if plain else hidden):
            sampled.put(rest[part], sample(logits, [rows[i] for i in rest[part]]))
        return sampled

    def _check(self, plan: StepPlan) -> None:
        check_plan(
            plan,
            self._spec,
            num_blocks=self.backend.num_blocks,
            block_size=self.backend.block_size,
            num_swap_blocks=self.backend.num_swap_blocks,
        )

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
            yield rows, self.backend.logits(hidden[rows])
