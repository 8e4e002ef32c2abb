from __future__ import annotations

import pytest

from headway.models.config_spec import read_config_spec

# Keys as published models have them; the numbers of layers are made small.

COMMON = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0",
    "use_cache": True,
    "vocab_size": 1000,
}
PUBLISHED: dict[str, dict[str, object]] = {
    "Llama 2": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "pretraining_tp": 1,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "Llama 3.2": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": 16,
        "hidden_act": "silu",
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    "SmolLM2": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_act": "silu",
        "is_llama_config": True,
        "mlp_bias": False,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    },
    "Mistral": {
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "sliding_window": 2048,
        "tie_word_embeddings": False,
    },
    "Qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "max_window_layers": 2,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    "Qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_window_layers": 28,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "Gemma 3": {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_configs_with_the_keys_of_published_models_are_read(model: str) -> None:
    published = COMMON | PUBLISHED[model]
    spec = read_config_spec(published, num_tensors=60)
    assert (spec.num_layers, spec.head_dim) == (3, published.get("head_dim", 16))
    window = {"Mistral": 2048, "Gemma 3": 512}.get(model)
    assert {kind.window for kind in spec.attention} == {window}
