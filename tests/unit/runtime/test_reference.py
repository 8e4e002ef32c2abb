from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.core.plan import StepPlan
from headway.models.spec import DecoderWeights
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import TorchExecutor
from tiny import TINY, tiny_weights
from tiny_plans import chunk_of

TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, TINY.vocab_size, 50)]


def llama(weights: DecoderWeights) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": TINY.vocab_size,
        "hidden_size": TINY.hidden_size,
        "intermediate_size": TINY.intermediate_size,
        "num_hidden_layers": TINY.num_layers,
        "num_attention_heads": TINY.num_heads,
        "num_key_value_heads": TINY.num_kv_heads,
        "head_dim": TINY.head_dim,
        "max_position_embeddings": TINY.max_position,
        "rms_norm_eps": TINY.rms_norm_eps,
        "rope_theta": 500.0,
        "tie_word_embeddings": False,
    }
    state = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.head,
    }
    for i, layer in enumerate(weights.layers):
        state |= {
            f"model.layers.{i}.{name}.weight": weight
            for name, weight in {
                "input_layernorm": layer.attention_norm,
                "self_attn.q_proj": layer.q,
                "self_attn.k_proj": layer.k,
                "self_attn.v_proj": layer.v,
                "self_attn.o_proj": layer.o,
                "post_attention_layernorm": layer.mlp_norm,
                "mlp.gate_proj": layer.gate,
                "mlp.up_proj": layer.up,
                "mlp.down_proj": layer.down,
            }.items()
        }
    model: Any = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict({name: torch.tensor(weight) for name, weight in state.items()})
    return model.eval()


@pytest.mark.parametrize("make", [ReferenceExecutor, TorchExecutor])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers_at_every_position(
    make: Callable[..., Any], tied: bool
) -> None:
    weights = tiny_weights(tied=tied)
    with torch.inference_mode():
        expected = llama(weights)(torch.tensor([TOKENS])).logits[0].numpy()
    executor = make(TINY, weights, num_blocks=4, block_size=16)
    for end in range(1, len(TOKENS) + 1):
        chunk = chunk_of("a", TOKENS[end - 1 : end], (2, 0, 3, 1), start=end - 1)
        (row,) = executor.logits(StepPlan(step=end, chunks=(chunk,)))
        np.testing.assert_allclose(row, expected[end - 1], atol=1e-4)
