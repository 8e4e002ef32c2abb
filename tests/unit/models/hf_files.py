"""Hugging Face directories for tests: raw safetensors a byte at a time, and tiny models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from unit.models.gguf_files import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, VOCAB

LAYERS = 2
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def raw_safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """`header` is JSON text, or what becomes JSON; `length` is what the file says of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def config(family: str = "llama", **changes: object) -> dict[str, object]:
    """Of a tiny model; None makes a key null."""
    result: dict[str, object] = {
        "architectures": [CLASSES[family]],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 64,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
    }
    if family == "mistral":
        result["sliding_window"] = None
    if family == "gemma3":
        result |= {"query_pre_attn_scalar": HEAD_DIM, "sliding_window": 8}
    return result | changes


def llama_tensors(num_layers: int = LAYERS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_directory(
    path: Path,
    config: dict[str, object],
    tensors: dict[str, np.ndarray] | list[dict[str, np.ndarray]],
    **files: object,
) -> Path:
    """A model's directory; with a list of tensors it is sharded. `files` are JSON by stem."""
    path.mkdir(exist_ok=True)
    for stem, content in {"config": config, **files}.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    if isinstance(tensors, dict):
        save_file(tensors, path / "model.safetensors")
        return path
    weight_map = {}
    for index, shard in enumerate(tensors, 1):
        name = f"model-{index:05}-of-{len(tensors):05}.safetensors"
        save_file(shard, path / name)
        weight_map |= dict.fromkeys(shard, name)
    index_json = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (path / "model.safetensors.index.json").write_text(index_json)
    return path
