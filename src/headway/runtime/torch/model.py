"""The decoder in PyTorch: few, large operators, and no Python per request but for prefills."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from headway.models.spec import DecoderSpec, DecoderWeights, LayerWeights, Rope
from headway.runtime.torch.batch import AttentionGroup, Batch
from headway.runtime.torch.kv_store import KVStore

__all__ = ["Decoder"]

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    o: Tensor  # [num_heads * head_dim, hidden], transposed for `addmm_`
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [intermediate, hidden], transposed


class Decoder:
    """Weights on a device in one dtype, and the forward pass over a batch.

    The rows of q and k are reordered so that the two values that rotary embedding turns
    together lie side by side: turning is then one complex product, and the scores are the
    same. May share memory with the weights that it is made of; they must not change.
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
        self._layers = [self._layer(layer) for layer in weights.layers]
        self._embedding = self._tensor(weights.embedding)
        tied = weights.head is weights.embedding
        self._head = self._embedding if tied else self._tensor(weights.head)
        self._final_norm = self._tensor(weights.final_norm)
        self._turns = _turns(spec.attention[0].rope, spec.max_position).to(
            device
        )  # [max_position, 1, head_dim / 2]

    def forward(self, batch: Batch, store: KVStore) -> Tensor:
        """Writes the batch's KV; returns the normalised hidden state of its sample rows."""
        spec = self._spec
        num_qk = spec.num_heads + spec.num_kv_heads
        heads = (-1, num_qk + spec.num_kv_heads, spec.head_dim)
        turns = self._turns[batch.positions]
        x = F.embedding(batch.token_ids, self._embedding)
        attended = torch.empty(
            (len(x), spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim),
            dtype=x.dtype,
            device=x.device,
        )
        for index, layer in enumerate(self._layers):
            qkv = F.linear(self._norm(x, layer.attention_norm), layer.qkv).view(heads)
            _turn(qkv[:, :num_qk], turns)
            store.write(index, batch.slot_rows, qkv[:, spec.num_heads :])
            q = qkv[:, : spec.num_heads].view(attended.shape)
            for group in batch.groups:
                kv = store.read(index, group.kv_rows, self._dtype)
                _attend(q[group.rows], kv, group, attended[group.rows])
            x.addmm_(attended.view(len(x), -1), layer.o)
            gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x.addmm_(F.silu(gate).mul_(up), layer.down)
        return self._norm(x[batch.sample_rows], self._final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]."""
        return F.linear(hidden, self._head).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """PyTorch takes the statistics of bfloat16 in float32."""
        return F.rms_norm(x, weight.shape, weight, self._spec.rms_norm_eps)

    def _layer(self, layer: LayerWeights) -> _Layer:
        q, k = (_pairs_together(w, self._spec.head_dim) for w in (layer.q, layer.k))
        return _Layer(
            attention_norm=self._tensor(layer.attention_norm),
            qkv=self._tensor(np.concatenate((q, k, layer.v))),
            o=self._tensor(layer.o).T,
            mlp_norm=self._tensor(layer.mlp_norm),
            gate_up=self._tensor(np.concatenate((layer.gate, layer.up))),
            down=self._tensor(layer.down).T,
        )

    def _tensor(self, array: Array) -> Tensor:
        writable = array if array.flags.writeable else array.copy()
        return torch.from_numpy(writable).to(self._device, self._dtype)


def _pairs_together(weight: Array, head_dim: int) -> Array:
    """Rows i and i + head_dim/2 of each head, made neighbours."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _turns(rope: Rope, num_positions: int) -> Tensor:
    """cos + i sin of every position's angles, complex64 from float64."""
    frequencies = torch.tensor(rope.frequencies, dtype=torch.float64)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    magnitude = torch.full_like(angles, rope.magnitude)
    return torch.polar(magnitude, angles).to(torch.complex64)[:, None]


def _turn(qk: Tensor, turns: Tensor) -> None:
    """Rotary embedding in place, in float32; qk [tokens, heads, head_dim]."""
    turned = qk.float()  # itself where it is float32
    torch.view_as_complex(turned.view(*turned.shape[:-1], -1, 2)).mul_(turns)
    if turned is not qk:
        qk.copy_(turned)


def _attend(q: Tensor, kv: Tensor, group: AttentionGroup, out: Tensor) -> None:
    """q and out [rows, kv_heads, queries per kv head, head_dim]; kv as `KVStore.read` gives it.

    K and V are never repeated: of a decode group the queries that share a KV head are one
    sequence's queries, of a prefill chunk the KV head is broadcast.
    """
    num_kv_heads, queries, head_dim = q.shape[1:]
    kv = kv.view(2, num_kv_heads, group.num_sequences, -1, head_dim)[..., : group.context, :]
    order = (1, 2, 0, 3) if group.is_prefill else (1, 0, 2, 3)
    if group.is_prefill:
        kv = kv.expand(-1, -1, queries, -1, -1)
    out.permute(order).copy_(
        F.scaled_dot_product_attention(
            q.permute(order),
            kv[0],
            kv[1],
            attn_mask=group.mask,
            is_causal=group.mask is None,
        )
    )
