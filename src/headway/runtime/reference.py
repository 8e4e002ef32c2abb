"""The reference executor: what a plan means, in NumPy, for others to be tested against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.core.plan import Sample, StepPlan, StepResult
from headway.models.spec import DecoderSpec, DecoderWeights, LayerWeights, Rope
from headway.runtime.draws import uniforms, why_no_token
from headway.runtime.inputs import TokensByRequest, check_plan, fill_in, sampled_tokens

__all__ = ["ReferenceExecutor", "sample_row"]

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class ReferenceExecutor:
    """Runs plans in float32, one chunk after another. Slow and obviously right.

    Owns the KV cache: [layers, K or V, slots, kv_heads, head_dim], where the slot of
    position p is `block_table[p // block_size] * block_size + p % block_size`.
    """

    def __init__(
        self, spec: DecoderSpec, weights: DecoderWeights, *, num_blocks: int, block_size: int
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._layers = tuple(weights.layers)
        self._num_blocks = num_blocks
        self._block_size = block_size
        shape = (spec.num_layers, 2, num_blocks * block_size, spec.num_kv_heads, spec.head_dim)
        self._cache = np.zeros(shape, dtype=np.float32)
        self._in_flight: TokensByRequest = {}

    def submit(self, plan: StepPlan) -> StepResult:
        """Computes the plan at once. Raises ValueError, changing nothing, for a wrong one."""
        self._check(plan)
        known, errors = fill_in(plan, self._in_flight)
        rows = iter(self._logits(plan, known))
        tokens: list[int | None] = []
        for index, chunk in enumerate(plan.chunks):
            token = None
            if chunk.sample is not None:
                try:
                    token = sample_row(next(rows), chunk.sample)
                except ValueError as error:
                    errors.setdefault(index, str(error))
            tokens.append(None if index in errors else token)
        self._in_flight = sampled_tokens(plan, tokens)
        return StepResult(step=plan.step, token_ids=tuple(tokens), errors=errors)

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    def logits(self, plan: StepPlan) -> Array:
        """What `submit` samples from: [rows, vocab], a row per chunk with a sample, in order.

        Writes the KV cache as `submit` does.
        """
        self._check(plan)
        return self._logits(plan, fill_in(plan, self._in_flight)[0])

    def _check(self, plan: StepPlan) -> None:
        check_plan(plan, self._spec, num_blocks=self._num_blocks, block_size=self._block_size)

    def _logits(self, plan: StepPlan, known: list[tuple[int, ...]]) -> Array:
        for block in plan.zero_blocks:
            self._cache[:, :, block * self._block_size : (block + 1) * self._block_size] = 0.0
        if not plan.chunks:
            return np.zeros((0, self._spec.vocab_size), dtype=np.float32)
        last_rows = np.cumsum([chunk.num_tokens for chunk in plan.chunks]) - 1
        sampled = [i for i, chunk in enumerate(plan.chunks) if chunk.sample is not None]
        with np.errstate(invalid="ignore", over="ignore"):  # NaN is reported row by row
            hidden = self._forward(plan, known)[last_rows[sampled]]
            hidden = _rms_norm(hidden, self._weights.final_norm, self._spec.rms_norm_eps)
            return hidden @ self._weights.head.T

    def _forward(self, plan: StepPlan, known: list[tuple[int, ...]]) -> Array:
        spec = self._spec
        contexts = [self._slots(chunk.block_table, chunk.end) for chunk in plan.chunks]
        spans = [(chunk.start, chunk.end) for chunk in plan.chunks]
        positions = np.concatenate([np.arange(start, end) for start, end in spans])
        new_slots = np.concatenate(
            [slots[start:] for slots, (start, _) in zip(contexts, spans, strict=True)]
        )
        x: Array = self._weights.embedding[np.concatenate([np.array(ids) for ids in known])]
        for kind, weights, cache in zip(spec.attention, self._layers, self._cache, strict=True):
            h = _rms_norm(x, weights.attention_norm, spec.rms_norm_eps)
            q, k, v = (
                (h @ w.T).reshape(len(h), -1, spec.head_dim)
                for w in (weights.q, weights.k, weights.v)
            )
            cache[0, new_slots] = _rotate(k, positions, kind.rope)
            cache[1, new_slots] = v
            q = _rotate(q, positions, kind.rope)
            attended = np.empty_like(q)
            row = 0
            for slots, (start, end) in zip(contexts, spans, strict=True):
                rows = slice(row, row + end - start)
                attended[rows] = _attention(
                    q[rows], cache[0, slots], cache[1, slots], positions[rows]
                )
                row = rows.stop
            x = x + attended.reshape(len(x), -1) @ weights.o.T
            x = x + _mlp(_rms_norm(x, weights.mlp_norm, spec.rms_norm_eps), weights)
        return x

    def _slots(self, block_table: tuple[int, ...], end: int) -> Ids:
        positions = np.arange(end)
        blocks = np.array(block_table)[positions // self._block_size]
        slots: Ids = blocks * self._block_size + positions % self._block_size
        return slots


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
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


def _attention(q: Array, k: Array, v: Array, positions: Ids) -> Array:
    """A query sees the keys up to its position; q [tokens, heads, d], k and v [keys, ...]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = np.einsum("thd,khd->htk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.arange(len(k)) <= positions[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    attended: Array = np.einsum("htk,khd->thd", weights, v).astype(np.float32)
    return attended


def _mlp(h: Array, weights: LayerWeights) -> Array:
    gate = h @ weights.gate.T
    silu = gate * (0.5 + 0.5 * np.tanh(0.5 * gate))
    down: Array = (silu * (h @ weights.up.T)) @ weights.down.T
    return down


def sample_row(logits: Array, sample: Sample) -> int:
    """One token from one row [vocab]; raises ValueError where none can be sampled.

    Temperature, min_p, top_k, top_p in vLLM's order, each on what the one before left;
    then the inverse of the cumulative distribution in the order of the vocabulary.
    """
    params = sample.params
    scores = logits.astype(np.float64)
    scores[list(sample.suppressed)] = -np.inf
    best = int(np.argmax(scores))  # the lowest on ties; NaN wins
    if (reason := why_no_token(float(scores[best]))) is not None:
        raise ValueError(reason)
    if params.greedy:
        return best
    with np.errstate(over="ignore"):  # a tiny temperature leaves only the best
        probabilities = np.exp((scores - scores[best]) / params.temperature)
    probabilities /= probabilities.sum()
    probabilities[probabilities < params.min_p * probabilities.max()] = 0.0
    kept = np.argsort(-probabilities, kind="stable")  # lower ids first on ties
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        reached = probabilities[kept].cumsum()
        kept = kept[: np.searchsorted(reached, params.top_p * reached[-1]) + 1]
    cumulative = np.zeros_like(probabilities)
    cumulative[kept] = probabilities[kept]
    cumulative = cumulative.cumsum()
    drawn = uniforms([sample])[0] * cumulative[-1]
    return int(np.searchsorted(cumulative, drawn, side="right"))
