"""A decoder small enough to compute in microseconds, with random weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights, LayerWeights, Rope

__all__ = ["TINY", "tiny_weights"]

TINY = DecoderSpec(
    architecture="llama",
    attention=(AttentionKind(Rope(tuple(500.0 ** (-i / 4) for i in range(4)))),) * 2,
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


def tiny_weights(spec: DecoderSpec = TINY, *, seed: int = 0, tied: bool = True) -> DecoderWeights:
    """Weights of a spread that keeps logits a few units apart, so that tokens differ clearly."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return rng.normal(0.0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, spec.hidden_size).astype(np.float32)

    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layers = tuple(
        LayerWeights(
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
        for _ in range(spec.num_layers)
    )
    embedding = matrix(spec.vocab_size, hidden)
    head = embedding if tied else matrix(spec.vocab_size, hidden)
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=norm(), head=head)
