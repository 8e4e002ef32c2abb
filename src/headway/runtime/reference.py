"""The reference executor: what a plan means, in NumPy, for others to be tested against."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headway.core.plan import ChunkError, PromptRows, StepPlan, StepResult, TokenLogprobs
from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights, LayerWeights, Rope
from headway.runtime.checks import check_plan
from headway.runtime.constraints import constrain
from headway.runtime.inputs import SampleRow, TokensByRequest, fill_in, sample_rows
from headway.runtime.results import SampledRows, sampled_tokens, step_result
from headway.runtime.sample_reference import sample_row, token_logprobs
from headway.runtime.timing import median_s

__all__ = ["ReferenceExecutor"]

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_nan_is_reported_by_row = np.errstate(invalid="ignore", over="ignore")


class ReferenceExecutor:
    """Runs plans in float32, one chunk after another. Slow and obviously right.

    Owns the KV cache: [layers, K or V, slots, kv_heads, head_dim], where the slot of
    position p is `block_table[p // block_size] * block_size + p % block_size`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
    ) -> None:
        self._spec = spec
        tied = weights.head is weights.embedding
        self._embedding: Array = np.asarray(weights.embedding)
        self._head: Array = self._embedding if tied else np.asarray(weights.head)
        self._final_norm = weights.final_norm
        self._layers = tuple(weights.layers)
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._num_swap_blocks = num_swap_blocks
        shape = (spec.num_layers, 2, num_blocks * block_size, spec.num_kv_heads, spec.head_dim)
        self._cache = np.zeros(shape, dtype=np.float32)
        self._swapped: dict[int, Array] = {}
        """Swap slot → what was last copied there."""
        self._in_flight: TokensByRequest = {}

    def block_copy_s(self, timer: Callable[[], float] = time.perf_counter) -> float:
        """Seconds that one block's copy to the swap space or back takes, measured now."""
        block = self._block(0)

        def there_and_back() -> None:
            block[:] = block.copy()

        return median_s(there_and_back, timer) / 2

    def submit(self, plan: StepPlan) -> StepResult:
        """Computes the plan at once. Raises ValueError, changing nothing, for a wrong one."""
        self._check(plan)
        known, errors = fill_in(plan, self._in_flight)
        hidden_states = self._forward(plan, known)
        rows = constrain(sample_rows(plan, known), self._spec.vocab_size)
        sampled = _sampled(self._sample_logits(plan, hidden_states), rows)
        prompt_logprobs = {
            index: self._prompt_logprobs(chunk.start, chunk.prompt_rows, hidden)
            for index, (chunk, hidden) in enumerate(zip(plan.chunks, hidden_states, strict=True))
            if chunk.prompt_rows is not None
        }
        result = step_result(plan, sampled, errors, prompt_logprobs)
        self._in_flight = sampled_tokens(plan, result)
        return result

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    def logits(self, plan: StepPlan) -> Array:
        """What `submit` samples from: [rows, vocab], a row per sampled token, chunk by chunk.

        Writes the KV cache as `submit` does.
        """
        self._check(plan)
        known, _ = fill_in(plan, self._in_flight)
        return self._sample_logits(plan, self._forward(plan, known))

    def _check(self, plan: StepPlan) -> None:
        check_plan(
            plan,
            self._spec,
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            num_swap_blocks=self._num_swap_blocks,
        )

    def _sample_logits(self, plan: StepPlan, hidden_states: list[Array]) -> Array:
        """After the last known token of each chunk with a sample, and after each draft."""
        rows = [
            self._logits(row)
            for chunk, hidden in zip(plan.chunks, hidden_states, strict=True)
            if chunk.sample is not None
            for row in hidden[-1 - chunk.num_drafts :]
        ]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self._spec.vocab_size)

    @_nan_is_reported_by_row
    def _logits(self, hidden: Array) -> Array:
        """[..., hidden] -> [..., vocab]"""
        logits: Array = hidden @ self._head.T
        return logits

    def _prompt_logprobs(
        self, start: int, asked: PromptRows, hidden: Array
    ) -> tuple[TokenLogprobs, ...]:
        """`hidden` is that of a whole chunk, which begins at `start`."""
        first_row = asked.first - 1 - start
        return tuple(
            token_logprobs(self._logits(hidden[row]), token, asked.num_top)
            for row, token in enumerate(asked.token_ids, first_row)
        )

    @_nan_is_reported_by_row
    def _forward(self, plan: StepPlan, known: list[tuple[int, ...]]) -> list[Array]:
        """Writes the KV cache; the normalised hidden states of each chunk [tokens, hidden]."""
        self._move_blocks(plan)
        if not plan.chunks:
            return []
        spec, eps = self._spec, self._spec.rms_norm_eps
        contexts = [self._slots(chunk.block_table, chunk.end) for chunk in plan.chunks]
        positions = [np.arange(chunk.start, chunk.end) for chunk in plan.chunks]
        x = self._embedding[np.concatenate([np.array(ids) for ids in known])]
        x = x * np.float32(spec.embedding_scale)
        for kind, weights, cache in zip(spec.attention, self._layers, self._cache, strict=True):
            h = _rms_norm(x, weights.attention_norm, eps)
            attended = self._attend(h, weights, kind, cache, positions, contexts)
            x = x + _rms_norm(attended @ weights.o.T, weights.attention_post_norm, eps)
            h = _rms_norm(x, weights.mlp_norm, eps)
            gated = self._activation(h @ weights.gate.T) * (h @ weights.up.T)
            x = x + _rms_norm(gated @ weights.down.T, weights.mlp_post_norm, eps)
        x = _rms_norm(x, self._final_norm, eps)
        return np.split(x, _cuts(positions))

    def _move_blocks(self, plan: StepPlan) -> None:
        for block, slot in plan.copies_out:
            self._swapped[slot] = self._block(block).copy()
        for block in plan.zero_blocks:
            self._block(block)[:] = 0.0
        for slot, block in plan.copies_in:
            self._block(block)[:] = self._swapped[slot]

    def _block(self, block: int) -> Array:
        """A view of it: [layers, K or V, block_size, kv_heads, head_dim]."""
        return self._cache[:, :, block * self._block_size : (block + 1) * self._block_size]

    def _attend(
        self,
        h: Array,
        weights: LayerWeights,
        kind: AttentionKind,
        cache: Array,
        positions: list[Ids],
        contexts: list[Ids],
    ) -> Array:
        """Writes K and V of all chunks; then every token attends, [tokens, heads * head_dim].

        `cache` is the layer's; `positions` and `contexts` (the slots of all positions up to
        the chunk's end) are per chunk.
        """
        spec = self._spec
        all_positions = np.concatenate(positions)
        slots = np.concatenate([c[p] for c, p in zip(contexts, positions, strict=True)])
        q, k, v = (
            _rms_norm(
                _linear(h, w, bias).reshape(len(h), -1, spec.head_dim), norm, spec.rms_norm_eps
            )
            for w, bias, norm in (
                (weights.q, weights.q_bias, weights.q_norm),
                (weights.k, weights.k_bias, weights.k_norm),
                (weights.v, weights.v_bias, None),
            )
        )
        cache[0, slots] = _rotate(k, all_positions, kind.rope)
        cache[1, slots] = v
        q = _rotate(q, all_positions, kind.rope)
        attended = [
            _attention(
                own, *cache[:, context], seen=_seen(p, kind.window), scale=spec.attention_scale
            )
            for own, context, p in zip(
                np.split(q, _cuts(positions)), contexts, positions, strict=True
            )
        ]
        return np.concatenate(attended).reshape(len(h), -1)

    def _activation(self, gate: Array) -> Array:
        if self._spec.activation == "silu":
            factor = 0.5 + 0.5 * np.tanh(0.5 * gate)
        else:  # GELU's tanh approximation (arXiv 1606.08415)
            factor = 0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
        activated: Array = gate * factor
        return activated

    def _slots(self, block_table: tuple[int, ...], end: int) -> Ids:
        positions = np.arange(end)
        blocks = np.array(block_table)[positions // self._block_size]
        slots: Ids = blocks * self._block_size + positions % self._block_size
        return slots


def _sampled(logits: Array, rows: list[SampleRow]) -> SampledRows:
    """A token from each row of logits [rows, vocab]."""
    sampled = SampledRows([None] * len(rows))
    for i, row in enumerate(rows):
        token = sample_row(logits[i], row)
        if isinstance(token, ChunkError):
            sampled.errors[i] = token
            continue
        sampled.token_ids[i] = token
        if (num_top := row.sample.params.logprobs) is not None:
            sampled.logprobs[i] = token_logprobs(logits[i], token, num_top)
    return sampled


def _cuts(positions: list[Ids]) -> Ids:
    """Where to split the rows of all chunks into those of each."""
    cuts: Ids = np.cumsum([len(own) for own in positions])[:-1]
    return cuts


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    product: Array = x @ weight.T
    return product if bias is None else product + bias


def _rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """Over the last axis, with the statistics in float64; x itself where there is no weight."""
    if weight is None:
        return x
    mean_square = np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)
    normalised: Array = (x / np.sqrt(mean_square + eps) * weight).astype(np.float32)
    return normalised


def _rotate(x: Array, positions: Ids, rope: Rope) -> Array:
    """Rotary embedding over halves of a head; x [tokens, heads, head_dim]."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * np.array(rope.frequencies)
    cos, sin = rope.magnitude * np.cos(angles), rope.magnitude * np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    rotated = np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
    return rotated.astype(np.float32)


def _seen(positions: Ids, window: int | None) -> npt.NDArray[np.bool_]:
    """Which positions from 0 to the last of `positions` each of these attends to."""
    age = positions[:, None] - np.arange(positions[-1] + 1)
    return (age >= 0) & (age < (window or np.inf))


def _attention(q: Array, k: Array, v: Array, *, seen: npt.NDArray[np.bool_], scale: float) -> Array:
    """q [tokens, heads, d], k and v [keys, kv_heads, d], seen [tokens, keys]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = np.einsum("thd,khd->htk", q, k) * np.float64(scale)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    attended: Array = np.einsum("htk,khd->thd", weights, v).astype(np.float32)
    return attended
