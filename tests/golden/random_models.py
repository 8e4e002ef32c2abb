"""Small models with random weights, saved by Transformers, and the same as GGUF files."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from transformers import PreTrainedConfig

from unit.models.gguf_files import write_gguf

__all__ = ["MODELS", "NOT_IN_GGUF", "save_directory", "save_gguf", "save_in_old_form"]

VOCAB = 101
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


def _llama(rope: dict[str, object], **more: object) -> PreTrainedConfig:
    return transformers.LlamaConfig(**SIZES, rope_parameters=rope, **more)


def _gemma3() -> PreTrainedConfig:
    sizes = SIZES | {"num_hidden_layers": 7}
    return transformers.Gemma3TextConfig(
        **sizes,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=8,
        tie_word_embeddings=False,  # with random weights it would say the same token for ever
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    )


MODELS: dict[str, tuple[Callable[[], PreTrainedConfig], torch.dtype]] = {
    "llama": (
        lambda: _llama({"rope_type": "default", "rope_theta": 500.0}),
        torch.float32,
    ),
    "llama-linear": (lambda: _llama(LINEAR, tie_word_embeddings=True), torch.float32),
    "llama-llama3": (lambda: _llama(LLAMA3), torch.bfloat16),
    "llama-yarn": (lambda: _llama(YARN, head_dim=16), torch.float32),
    "mistral": (
        lambda: transformers.MistralConfig(**SIZES, sliding_window=8),
        torch.float16,
    ),
    "qwen2": (
        lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
        torch.float32,
    ),
    "qwen2-window": (
        lambda: transformers.Qwen2Config(
            **SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1
        ),
        torch.float32,
    ),
    "qwen3": (
        lambda: transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
        torch.bfloat16,
    ),
    "gemma3": (_gemma3, torch.float32),
}
"""Name → configuration and the type that it is saved in."""

NOT_IN_GGUF = ("mistral", "qwen2-window")
"""llama.cpp knows no windows there."""


def save_directory(name: str, path: Path) -> Path:
    """In shards of some kilobytes each, so that there is an index."""
    make_config, dtype = MODELS[name]
    config = make_config()
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:  # Gemma's lack one
                centre = 0.0 if config.model_type == "gemma3_text" else 1.0
                parameter.uniform_(centre - 0.5, centre + 0.5)
            else:
                width = parameter.shape[-1] if parameter.ndim > 1 else 4
                parameter.normal_(0, 1.5 / math.sqrt(width))
    model.to(dtype).save_pretrained(path, max_shard_size="100KB")
    return path


def save_in_old_form(directory: Path, path: Path) -> Path:
    """The same model with `config.json` as Transformers wrote it before version 5."""
    shutil.copytree(directory, path)
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    config.pop("layer_types", None)
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if local is not None:
        config["rope_local_base_freq"] = local["rope_theta"]
        config["sliding_window_pattern"] = 6
    (path / "config.json").write_text(json.dumps(config))
    return path


def save_gguf(name: str, directory: Path, path: Path) -> Path:
    """The directory's model as llama.cpp would convert it, names by the `gguf` package."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = model.config
    arch = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    enum = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == arch)
    names = gguf.get_tensor_name_map(enum, config.num_hidden_layers)
    tensors: dict[str, np.ndarray] = {}
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = key.rpartition(".")
        tensor = value.numpy()
        if arch == "gemma3" and stem.endswith("norm"):
            tensor = tensor + np.float32(1)
        if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
            halves = tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[1])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        tensors[f"{names.get_name(stem)}.{suffix}"] = np.ascontiguousarray(tensor)
    metadata = _metadata(config, arch)
    if config.rope_parameters.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(config)
    return write_gguf(path, metadata, tensors, arch)


def _metadata(config: PreTrainedConfig, arch: str) -> dict[str, object]:
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    own: dict[str, object] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if rope["rope_type"] in ("linear", "yarn"):
        own["rope.scaling.type"] = rope["rope_type"]
        own["rope.scaling.factor"] = rope["factor"]
    if rope["rope_type"] == "yarn":
        own["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        own["rope.scaling.yarn_beta_fast"] = rope["beta_fast"]
        own["rope.scaling.yarn_beta_slow"] = rope["beta_slow"]
    if arch == "gemma3":
        own["attention.sliding_window"] = config.sliding_window
        own["attention.scale"] = config.query_pre_attn_scalar**-0.5
    tokens = tuple(f"t{index}" for index in range(config.vocab_size))
    return {f"{arch}.{key}": value for key, value in own.items()} | {
        "tokenizer.ggml.tokens": tokens
    }


def _llama3_divisors(config: PreTrainedConfig) -> np.ndarray:
    """What llama.cpp's converter writes: by how much each frequency is divided."""
    rope = config.rope_parameters
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for pair in range(config.head_dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / config.head_dim)
        smooth = (original / wavelength - low) / (high - low)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)
