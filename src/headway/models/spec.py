"""What a decoder is, whatever family it comes from, and its weights by canonical name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "AttentionKind",
    "DecoderSpec",
    "DecoderWeights",
    "LayerWeights",
    "Rope",
    "StoredMatrix",
    "row_parts",
]

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding over halves of a head (pairs i, i + head_dim/2), at full width.

    Whatever scaling a model asks for is in the numbers, so that no executor knows of it.
    """

    frequencies: tuple[float, ...]
    """Radians per position, one for each of the head_dim/2 pairs."""
    magnitude: float = 1.0
    """Factor of cosine and sine (YaRN's attention factor)."""


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """What the attention of one layer sees, and how it knows positions."""

    rope: Rope
    window: int | None = None
    """A token sees itself and the `window` - 1 tokens before it; None: all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder with RMSNorm, rotary positions, grouped-query attention, gated MLP.

    In order, per layer: norm, q/k/v (with bias), norms of each head of q and k, rope,
    attention, o, norm after, residual; norm, MLP, norm after, residual. What a model has no
    weights for is left out.
    """

    architecture: str
    """Family name as in the model file, e.g. `llama`."""
    attention: tuple[AttentionKind, ...]
    """One per layer; equal kinds are the same object."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Context length the model was made for, in tokens."""
    rms_norm_eps: float
    attention_scale: float
    """Factor of the scores; most models' is head_dim ** -0.5."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the MLP's gate; `gelu_tanh` is the tanh approximation of GELU."""
    embedding_scale: float = 1.0
    """Factor of the embedded tokens, not of the head."""
    qkv_bias: bool = False
    """q, k and v have biases."""
    qk_norm: bool = False
    """Each head of q and of k is normalised, before rope."""
    post_norms: bool = False
    """What attention and MLP add to the residual is normalised first."""

    @property
    def num_layers(self) -> int:
        return len(self.attention)

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
    q_bias: Array | None = None  # [num_heads * head_dim]
    k_bias: Array | None = None  # [num_kv_heads * head_dim]
    v_bias: Array | None = None  # [num_kv_heads * head_dim]
    q_norm: Array | None = None  # [head_dim]
    k_norm: Array | None = None  # [head_dim]
    attention_post_norm: Array | None = None  # [hidden]
    mlp_post_norm: Array | None = None  # [hidden]


class StoredMatrix(Protocol):
    """A matrix that is still in its file; `np.asarray` loads it whole."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def parts(self) -> Iterator[Array]:
        """Its rows in order, some at a time, loaded as they are taken."""
        ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole decoder, float32. Norms multiply by their weight as it stands here.

    All but the final norm may be loaded from its file as it is taken, and again each time:
    whoever converts layers and rows one by one never holds them all.
    """

    embedding: Array | StoredMatrix  # [vocab, hidden]
    layers: Iterable[LayerWeights]
    """In order."""
    final_norm: Array  # [hidden]
    head: Array | StoredMatrix  # [vocab, hidden]; the embedding itself where they are tied


def row_parts(matrix: Array | StoredMatrix) -> Iterator[Array]:
    """Its rows in order, some at a time."""
    return iter((matrix,)) if isinstance(matrix, np.ndarray) else matrix.parts()
