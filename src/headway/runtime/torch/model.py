"""The decoder in PyTorch: few, large operators, and no Python per request but for prefills."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights, LayerWeights
from headway.runtime.torch.batch import AttentionGroup, Batch
from headway.runtime.torch.kv_store import KVStore

__all__ = ["Decoder"]

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Layer:
    rope: int
    """Index among the distinct ropes of the model."""
    window: int | None
    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None  # [(num_heads + 2 * num_kv_heads) * head_dim]
    qk_norm: Tensor | None  # [num_heads + num_kv_heads, head_dim], float32
    o: Tensor  # [num_heads * head_dim, hidden], transposed for `addmm_`
    attention_post_norm: Tensor | None  # [hidden]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [intermediate, hidden], transposed
    mlp_post_norm: Tensor | None  # [hidden]


class Decoder:
    """Weights on a device in one dtype, and the forward pass over a batch.

    The rows of q and k are reordered so that the two values that rotary embedding turns
    together lie side by side: turning is then one complex product, and the scores are the
    same. May share memory with the weights that it is made of; they must not change.
    Layers are converted as they come, and none is kept in a dtype that is not `dtype`.

    In bfloat16 the embedding scale is rounded too, and norms whose weights bfloat16 does not
    hold (Gemma's are 1 + w) keep them in float32: both as in Transformers. Heads are normalised
    and turned in float32.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._spec = spec
        self._device = device
        self._dtype = dtype
        self._ropes = tuple(dict.fromkeys(kind.rope for kind in spec.attention))
        # `map` lets go of a layer before it takes the next, unlike a loop's variable.
        self._layers = list(map(self._layer, spec.attention, weights.layers))
        assert len(self._layers) == spec.num_layers
        self._embedding = self._tensor(np.asarray(weights.embedding))
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=dtype).item()
        tied = weights.head is weights.embedding
        self._head = self._embedding if tied else self._tensor(np.asarray(weights.head))
        self._final_norm = self._norm_weight(weights.final_norm)
        self._frequencies = [
            torch.tensor(rope.frequencies, dtype=torch.float64, device=device)
            for rope in self._ropes
        ]

    def forward(self, batch: Batch, store: KVStore) -> Tensor:
        """Writes the batch's KV; returns the normalised hidden state of its output rows."""
        spec = self._spec
        num_qk = spec.num_heads + spec.num_kv_heads
        heads = (-1, num_qk + spec.num_kv_heads, spec.head_dim)
        turns = self._turns(batch.positions)
        x = F.embedding(batch.token_ids, self._embedding).mul_(self._embedding_scale)
        attended = torch.empty(
            (len(x), spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim),
            dtype=x.dtype,
            device=x.device,
        )
        for index, layer in enumerate(self._layers):
            h = self._norm(x, layer.attention_norm)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(heads)
            self._norm_and_turn(qkv[:, :num_qk], layer.qk_norm, turns[layer.rope])
            store.write(index, batch.slot_rows, qkv[:, spec.num_heads :])
            q = qkv[:, : spec.num_heads].view(attended.shape)
            for group in batch.groups[layer.window]:
                kv = store.read(index, group.kv_rows, self._dtype)
                _attend(q[group.rows], kv, group, spec.attention_scale, attended[group.rows])
            self._add(x, attended.view(len(x), -1), layer.o, layer.attention_post_norm)
            h = self._norm(x, layer.mlp_norm)
            gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
            self._add(x, self._activation(gate).mul_(up), layer.down, layer.mlp_post_norm)
        return self._norm(x[batch.output_rows], self._final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]."""
        return F.linear(hidden, self._head).float()

    def _turns(self, positions: Tensor) -> list[Tensor]:
        """Per rope, cos + i sin of the positions' angles: complex64 [tokens, 1, head_dim / 2].

        From float64, anew in each step: tables of all positions would cost more memory than
        this costs time.
        """
        turns = []
        for rope, frequencies in zip(self._ropes, self._frequencies, strict=True):
            angles = torch.outer(positions.double(), frequencies)
            turned = torch.polar(torch.full_like(angles, rope.magnitude), angles)
            turns.append(turned.to(torch.complex64)[:, None])
        return turns

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """PyTorch takes the statistics of bfloat16 in float32."""
        if weight.dtype == x.dtype:
            return F.rms_norm(x, weight.shape, weight, self._spec.rms_norm_eps)
        return F.rms_norm(x.float(), weight.shape, weight, self._spec.rms_norm_eps).to(x.dtype)

    def _norm_and_turn(self, qk: Tensor, weight: Tensor | None, turns: Tensor) -> None:
        """The norm of each head, then rotary embedding, in place and in float32; qk [tokens,
        heads, head_dim]."""
        turned = qk.float()  # itself where it is float32
        if weight is not None:
            turned = F.rms_norm(turned, weight.shape[1:], eps=self._spec.rms_norm_eps).mul_(weight)
        torch.view_as_complex(turned.view(*turned.shape[:-1], -1, 2)).mul_(turns)
        if turned is not qk:
            qk.copy_(turned)

    def _activation(self, gate: Tensor) -> Tensor:
        if self._spec.activation == "silu":
            return F.silu(gate)
        return F.gelu(gate, approximate="tanh")

    def _add(self, x: Tensor, y: Tensor, weight: Tensor, post_norm: Tensor | None) -> None:
        """Adds y @ weight to x, normalised first where there is a norm for it."""
        if post_norm is None:
            x.addmm_(y, weight)
        else:
            x.add_(self._norm(y @ weight, post_norm))

    def _layer(self, kind: AttentionKind, layer: LayerWeights) -> _Layer:
        head_dim = self._spec.head_dim
        q, k = _pairs_together(layer.q, head_dim), _pairs_together(layer.k, head_dim)
        return _Layer(
            rope=self._ropes.index(kind.rope),
            window=kind.window,
            attention_norm=self._norm_weight(layer.attention_norm),
            qkv=self._tensor(np.concatenate((q, k, layer.v))),
            qkv_bias=self._qkv_bias(layer),
            qk_norm=self._qk_norm(layer),
            o=self._tensor(layer.o).T,
            attention_post_norm=self._post_norm(layer.attention_post_norm),
            mlp_norm=self._norm_weight(layer.mlp_norm),
            gate_up=self._tensor(np.concatenate((layer.gate, layer.up))),
            down=self._tensor(layer.down).T,
            mlp_post_norm=self._post_norm(layer.mlp_post_norm),
        )

    def _qkv_bias(self, layer: LayerWeights) -> Tensor | None:
        if not (biases := _all_or_none(layer.q_bias, layer.k_bias, layer.v_bias)):
            return None
        q, k, v = biases
        head_dim = self._spec.head_dim
        rows = (_pairs_together(q, head_dim), _pairs_together(k, head_dim), v)
        return self._tensor(np.concatenate(rows))

    def _qk_norm(self, layer: LayerWeights) -> Tensor | None:
        """A weight per head, so that those of q and k are normalised in one call."""
        if not (norms := _all_or_none(layer.q_norm, layer.k_norm)):
            return None
        q, k = (_pairs_together(norm, self._spec.head_dim) for norm in norms)
        heads = (q,) * self._spec.num_heads + (k,) * self._spec.num_kv_heads
        return self._tensor(np.stack(heads), torch.float32)

    def _post_norm(self, weight: Array | None) -> Tensor | None:
        return None if weight is None else self._norm_weight(weight)

    def _norm_weight(self, array: Array) -> Tensor:
        rounded, exact = self._tensor(array), self._tensor(array, torch.float32)
        return rounded if torch.equal(rounded.float(), exact) else exact

    def _tensor(self, array: Array, dtype: torch.dtype | None = None) -> Tensor:
        writable = array if array.flags.writeable else array.copy()
        return torch.from_numpy(writable).to(self._device, dtype or self._dtype)


def _all_or_none(*arrays: Array | None) -> list[Array]:
    given = [array for array in arrays if array is not None]
    assert len(given) in (0, len(arrays))
    return given


def _pairs_together(rows: Array, head_dim: int) -> Array:
    """Rows i and i + head_dim/2 of each head, made neighbours; [heads * head_dim, ...]."""
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _attend(q: Tensor, kv: Tensor, group: AttentionGroup, scale: float, out: Tensor) -> None:
    """q and out [rows, kv_heads, queries per kv head, head_dim]; kv as `KVStore.read` gives it.

    K and V are never repeated: of a decode group the queries that share a KV head are one
    sequence's queries, of a prefill chunk the KV head is broadcast.
    """
    num_kv_heads, queries, head_dim = q.shape[1:]
    kv = kv.view(2, num_kv_heads, group.num_sequences, -1, head_dim)[..., : group.context, :]
    if group.is_prefill:
        q, out = q.permute(1, 2, 0, 3), out.permute(1, 2, 0, 3)
        kv = kv.expand(-1, -1, queries, -1, -1)
    else:  # [kv heads, sequences, queries of their tokens, head_dim]
        shape = (group.num_sequences, group.tokens_each, *q.shape[1:])
        q = q.view(shape).permute(2, 0, 1, 3, 4).flatten(2, 3)
        out = out.view(shape).permute(2, 0, 1, 3, 4)
    attended = F.scaled_dot_product_attention(
        q, kv[0], kv[1], attn_mask=group.mask, is_causal=group.mask is None, scale=scale
    )
    out.copy_(attended.view(out.shape))
