"""The arithmetic of both executors against Transformers, family by family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from headway.core.plan import StepPlan
from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights, Rope
from tiny import TINY, tiny_weights
from tiny_executors import each_executor
from tiny_plans import chunk_of

TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, TINY.vocab_size, 50)]
WINDOW = 7


@dataclass
class Family:
    """A model of Transformers, the settings by which it differs, and the spec for the same."""

    config: Any
    model: Any
    settings: dict[str, Any]
    spec: DecoderSpec
    norm_offset: float = 0.0
    """What the family's code adds to the weights of its norms."""


def rope(theta: float) -> Rope:
    return Rope(tuple(theta ** (-i / 4) for i in range(4)))


FULL, LOCAL = AttentionKind(rope(500.0)), AttentionKind(rope(500.0), WINDOW)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
FAMILIES = [
    Family(LlamaConfig, LlamaForCausalLM, {}, TINY),
    Family(
        MistralConfig,
        MistralForCausalLM,
        {"sliding_window": WINDOW},
        replace(TINY, attention=(LOCAL, LOCAL)),
    ),
    Family(
        Qwen2Config,
        Qwen2ForCausalLM,
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
        replace(TINY, attention=(LOCAL, FULL), qkv_bias=True),
    ),
    Family(Qwen3Config, Qwen3ForCausalLM, {}, replace(TINY, qk_norm=True)),
    Family(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "query_pre_attn_scalar": 11,
        },
        replace(
            TINY,
            attention=(AttentionKind(rope(30.0), WINDOW), FULL),
            attention_scale=11**-0.5,
            activation="gelu_tanh",
            embedding_scale=TINY.hidden_size**0.5,
            qk_norm=True,
            post_norms=True,
        ),
        norm_offset=1.0,
    ),
]


def transformers_model(family: Family, weights: DecoderWeights) -> Any:
    spec = family.spec
    settings: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }
    model = family.model(family.config(**settings | family.settings))
    model.load_state_dict(
        {
            name: torch.tensor(weight - family.norm_offset * ("norm" in name))
            for name, weight in state_of(weights, post_norms=spec.post_norms).items()
        }
    )
    return model.eval()


def state_of(weights: DecoderWeights, *, post_norms: bool) -> dict[str, Any]:
    state = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.head,
    }
    for i, layer in enumerate(weights.layers):
        own = {
            "input_layernorm.weight": layer.attention_norm,
            "self_attn.q_proj.weight": layer.q,
            "self_attn.q_proj.bias": layer.q_bias,
            "self_attn.q_norm.weight": layer.q_norm,
            "self_attn.k_proj.weight": layer.k,
            "self_attn.k_proj.bias": layer.k_bias,
            "self_attn.k_norm.weight": layer.k_norm,
            "self_attn.v_proj.weight": layer.v,
            "self_attn.v_proj.bias": layer.v_bias,
            "self_attn.o_proj.weight": layer.o,
            "mlp.gate_proj.weight": layer.gate,
            "mlp.up_proj.weight": layer.up,
            "mlp.down_proj.weight": layer.down,
        }
        if post_norms:
            own["post_attention_layernorm.weight"] = layer.attention_post_norm
            own["pre_feedforward_layernorm.weight"] = layer.mlp_norm
            own["post_feedforward_layernorm.weight"] = layer.mlp_post_norm
        else:
            own["post_attention_layernorm.weight"] = layer.mlp_norm
        state |= {f"model.layers.{i}.{name}": w for name, w in own.items() if w is not None}
    return state


def check_every_position(
    make: Callable[..., Any], spec: DecoderSpec, weights: DecoderWeights, oracle: Any
) -> None:
    with torch.inference_mode():
        expected = oracle(torch.tensor([TOKENS])).logits[0].numpy()
    executor = make(spec, weights, num_blocks=4, block_size=16)
    for end in range(1, len(TOKENS) + 1):
        chunk = chunk_of("a", TOKENS[end - 1 : end], (2, 0, 3, 1), start=end - 1)
        (row,) = executor.logits(StepPlan(step=end, chunks=(chunk,)))
        np.testing.assert_allclose(row, expected[end - 1], atol=1e-4)


@each_executor
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model.__name__)
def test_logits_are_those_of_transformers_at_every_position(
    make: Callable[..., Any], family: Family, tied: bool
) -> None:
    weights = tiny_weights(family.spec, tied=tied)
    oracle = transformers_model(family, weights)
    check_every_position(make, family.spec, weights, oracle)


@each_executor
def test_a_rope_with_a_magnitude_is_that_of_transformers_yarn(make: Callable[..., Any]) -> None:
    family = Family(
        LlamaConfig, LlamaForCausalLM, {"rope_parameters": YARN | {"rope_theta": 500.0}}, TINY
    )
    weights = tiny_weights()
    oracle = transformers_model(family, weights)
    rotary = oracle.model.rotary_emb
    scaled = Rope(tuple(rotary.inv_freq.tolist()), rotary.attention_scaling)
    assert scaled.magnitude != 1.0
    spec = replace(TINY, attention=(AttentionKind(scaled),) * TINY.num_layers)
    check_every_position(make, spec, weights, oracle)
