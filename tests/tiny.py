"""Decoders small enough to compute in microseconds, with random weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights, LayerWeights, Rope

__all__ = ["TINY", "TINY_SPECS", "tiny_weights"]


def _rope(theta: float, magnitude: float = 1.0) -> Rope:
    return Rope(tuple(theta ** (-i / 4) for i in range(4)), magnitude)


TINY = DecoderSpec(
    architecture="llama",
    attention=(AttentionKind(_rope(500.0)),) * 2,
    hidden_size=24,
    intermediate_size=40,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=61,
    max_position=512,
    rms_norm_eps=1e-5,
    attention_scale=8**-0.5,
)
_LOCAL = AttentionKind(_rope(30.0), window=6)
_LOCAL_WIDER = AttentionKind(_rope(50.0, magnitude=1.3), window=17)
TINY_SPECS = {
    "llama": TINY,
    "gemma3": replace(
        TINY,
        architecture="gemma3",
        attention=(_LOCAL, _LOCAL, AttentionKind(_rope(500.0))),
        attention_scale=0.3,
        activation="gelu_tanh",
        embedding_scale=4.9,
        qk_norm=True,
        post_norms=True,
    ),
    "qwen2": replace(TINY, architecture="qwen2", num_kv_heads=1, qkv_bias=True),
    "everything": replace(
        TINY,
        architecture="everything",
        attention=(_LOCAL_WIDER, AttentionKind(_rope(500.0), window=1), _LOCAL_WIDER, _LOCAL),
        num_kv_heads=4,
        attention_scale=0.5,
        embedding_scale=0.7,
        qkv_bias=True,
        qk_norm=True,
        post_norms=True,
    ),
}
"""By architecture; together they use all that a spec can say."""


def tiny_weights(spec: DecoderSpec = TINY, *, seed: int = 0, tied: bool = True) -> DecoderWeights:
    """Weights of a spread that keeps logits a few units apart, so that tokens differ clearly."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return rng.normal(0.0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def norm(size: int = spec.hidden_size) -> npt.NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    def bias(size: int) -> npt.NDArray[np.float32]:
        return rng.normal(0.0, 1.0, size).astype(np.float32)

    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def layer() -> LayerWeights:
        weights = LayerWeights(
            attention_norm=norm(),
            q=matrix(q_size, hidden),
            k=matrix(kv_size, hidden),
            v=matrix(kv_size, hidden),
            o=matrix(hidden, q_size),
            mlp_norm=norm(),
            gate=matrix(intermediate, hidden),
            up=matrix(intermediate, hidden),
            down=matrix(hidden, intermediate),
        )
        if spec.qkv_bias:
            biases = {"q_bias": bias(q_size), "k_bias": bias(kv_size), "v_bias": bias(kv_size)}
            weights = replace(weights, **biases)
        if spec.qk_norm:
            weights = replace(weights, q_norm=norm(spec.head_dim), k_norm=norm(spec.head_dim))
        if spec.post_norms:
            weights = replace(weights, attention_post_norm=norm(), mlp_post_norm=norm())
        return weights

    layers = tuple(layer() for _ in range(spec.num_layers))
    embedding = matrix(spec.vocab_size, hidden)
    head = embedding if tied else matrix(spec.vocab_size, hidden)
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=norm(), head=head)
