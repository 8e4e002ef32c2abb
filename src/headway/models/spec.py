"""What a decoder is, whatever family it comes from, and its weights by canonical name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["DecoderSpec", "DecoderWeights", "LayerWeights"]

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder with RMSNorm, rotary positions, grouped-query attention, SiLU-gated MLP.

    Rotary embedding is over halves of a head (pairs i, i + head_dim/2), at full width.
    """

    architecture: str
    """Family name as in the model file, e.g. `llama`."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Context length the model was made for, in tokens."""
    rms_norm_eps: float
    rope_theta: float

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that the KV of one token is, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer, float32; a product's weight is [out, in]."""

    attention_norm: Array  # [hidden]
    q: Array  # [num_heads * head_dim, hidden]
    k: Array  # [num_kv_heads * head_dim, hidden]
    v: Array  # [num_kv_heads * head_dim, hidden]
    o: Array  # [hidden, num_heads * head_dim]
    mlp_norm: Array  # [hidden]
    gate: Array  # [intermediate, hidden]
    up: Array  # [intermediate, hidden]
    down: Array  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole decoder, float32."""

    embedding: Array  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Array  # [hidden]
    head: Array  # [vocab, hidden]; the embedding itself where they are tied
