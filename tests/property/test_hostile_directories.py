"""Hugging Face directories that are broken or mean harm: each works, or is refused shortly."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from property.hostile import tries, use_model
from unit.models import hf_files
from unit.models.gguf_files import HIDDEN
from unit.text.hf_tokenizers import byte_level, sentencepiece

LONG = "lo" * 5_000
NUMBERS = [
    0,
    1,
    -1,
    2,
    7,
    63,
    64,
    255,
    10_000,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
]
FLOATS = [0.5, -0.5, 1e-320, 1e-30, 1e30, 1e308, 1.0, 2.5]
TEXTS = [
    *("", "x", "\0", "é\u2028🙂", "<s>", "a", "ab", LONG, "../model.safetensors", "/dev/zero"),
    *("model.safetensors", "config.json", "float32", "F32", "BF16", "F64", "I8", "default"),
    *("linear", "yarn", "llama3", "dynamic", "longrope", "sliding_attention", "full_attention"),
    *("LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM", "ByteLevel", "BPE", "Unigram"),
    *("WordPiece", "Metaspace", "Replace", "Sequence", "Prepend", "Split", "TemplateProcessing"),
]
KEYS = [
    *("rope_scaling", "rope_parameters", "rope_theta", "factor", "rope_type", "type", "head_dim"),
    *("layer_types", "sliding_window", "use_sliding_window", "quantization_config", "eos_token_id"),
    *("partial_rotary_factor", "hidden_act", "attention_bias", "temperature", "top_k", "do_sample"),
    *("chat_template", "bos_token", "eos_token", "added_tokens_decoder", "added_tokens", "dtype"),
    *("shape", "data_offsets", "__metadata__", "weight_map", "metadata", "normalizer", "decoder"),
    *("truncation", "padding", "unk_token", "byte_fallback", "pattern", "merges", "vocab", "id"),
]


def any_json(pen: random.Random, depth: int = 2) -> object:
    match pen.randrange(8 if depth else 6):
        case 0:
            return None
        case 1:
            return pen.random() < 0.5
        case 2 | 3:
            return pen.choice(NUMBERS)
        case 4:
            return pen.choice(FLOATS)
        case 5:
            return pen.choice(TEXTS)
        case 6:
            return [any_json(pen, depth - 1) for _ in range(pen.choice([0, 1, 2, 3, 40]))]
        case _:
            return {pen.choice(KEYS): any_json(pen, depth - 1) for _ in range(pen.randrange(4))}


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a JSON value: container and key. Of large ones only the first few."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, item in items[:12] + items[-12:]:
        yield value, key
        if isinstance(item, dict | list):
            yield from nodes(item)


def disturb(pen: random.Random, value: Any) -> None:
    """Makes one fault in a JSON object."""
    container, key = pen.choice([*nodes(value), (value, "x")])
    match pen.randrange(6):
        case 0 if isinstance(container, dict):
            container.pop(key, None)
        case 1 if isinstance(container, dict):
            container[pen.choice([*KEYS, LONG, ""])] = any_json(pen)
        case 2 if isinstance(container, dict) and isinstance(container.get(key), int):
            container[key] += pen.choice([-1, 1, 2**32])
        case _ if key != "x":
            container[key] = any_json(pen)


def spoil(pen: random.Random, data: bytes) -> bytes:
    """Makes one fault in a file's bytes."""
    result = bytearray(data)
    at = pen.randrange(min(len(result), 4000) + 1)
    match pen.randrange(7):
        case 0:
            del result[at:]
        case 1:
            result[at : at + 1] = pen.randbytes(1)
        case 2:
            result[at:at] = pen.choice([b"\xff", b"\0", b"{", b'"', b"[" * 100_000, b"9" * 5000])
        case 3:
            number = pen.choice([0, 1, 7, 8, 2**31, 2**32, 2**62, 2**63, 2**64 - 9, 2**64 - 1])
            result[:8] = number.to_bytes(8, "little")
        case 4:
            del result[at : at + pen.choice([1, 8, 100])]
        case 5:
            result = bytearray(pen.randbytes(pen.choice([0, 1, 7, 8, 9, 100])))
        case _:
            result += pen.randbytes(pen.choice([1, 100]))
    return bytes(result)


def tensors(family: str, vocab_size: int) -> dict[str, np.ndarray]:
    result = hf_files.llama_tensors()
    result["model.embed_tokens.weight"] = np.ones((vocab_size, HIDDEN), np.float32)
    if family == "qwen2":
        for layer in range(hf_files.LAYERS):
            for name in "qkv":
                width = len(result[f"model.layers.{layer}.self_attn.{name}_proj.weight"])
                result[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = np.ones(
                    width, np.float32
                )
    return result


def write(path: Path, family: str, tokenizer: dict[str, Any], *, shards: int) -> None:
    size = 1 + max(
        *tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])
    )
    weights = tensors(family, size)
    names = sorted(weights)
    hf_files.write_directory(
        path,
        hf_files.config(family, vocab_size=size),
        weights
        if shards == 1
        else [{name: weights[name] for name in names[part::shards]} for part in range(shards)],
        tokenizer=tokenizer,
        tokenizer_config={
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "chat_template": "{{ messages }}",
        },
        generation_config={"eos_token_id": [1], "temperature": 0.6, "top_k": 5, "do_sample": True},
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("sound")
    write(root / "llama", "llama", byte_level(), shards=1)
    write(root / "qwen2", "qwen2", sentencepiece(), shards=3)
    return [root / "llama", root / "qwen2"]


def test_the_undisturbed_directories_work(sound: list[Path]) -> None:
    for path in sound:
        assert use_model(path) is None


@given(seed=st.integers(0, 2**64 - 1))
@tries(200)
def test_a_directory_with_faults_works_or_is_refused(
    seed: int, sound: list[Path], tmp_path: Path
) -> None:
    pen = random.Random(seed)
    path = tmp_path / "model"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(pen.choice(sound), path)
    for _ in range(pen.randint(1, 3)):
        damage(pen, path)
    note(str(use_model(path)))


def damage(pen: random.Random, path: Path) -> None:
    file = pen.choice(sorted(path.iterdir()))
    if pen.random() < 0.05:
        file.unlink()
    elif pen.random() < 0.2:
        file.write_bytes(spoil(pen, file.read_bytes()))
    elif file.suffix == ".safetensors":
        damage_header(pen, file)
    else:
        change_json(pen, file)


def change_json(pen: random.Random, file: Path) -> None:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return  # spoilt before
    if isinstance(content, dict):
        disturb(pen, content)
    file.write_text(json.dumps(content), encoding="utf-8")


def damage_header(pen: random.Random, file: Path) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return
    if isinstance(header, dict):
        disturb(pen, header)
    file.write_bytes(hf_files.raw_safetensors(header, data[8 + length :]))


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/dev/zero", "sub/model.safetensors", "..", "", "config.json"]
)
def test_an_index_does_not_lead_out_of_its_directory(
    name: str, sound: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "model"
    shutil.copytree(sound[1], path)
    (path / "sub").mkdir()
    first = min(path.glob("*.safetensors"))
    for place in (tmp_path, path / "sub"):
        shutil.copy(first, place / "model.safetensors")
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    moved = {
        key: name if file == first.name else file for key, file in content["weight_map"].items()
    }
    index.write_text(json.dumps({"weight_map": moved}), encoding="utf-8")
    message = use_model(path)
    assert message is not None
    assert "weight_map" in message
