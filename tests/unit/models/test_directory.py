from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.errors import ModelError, UnsupportedModel
from headway.models.weights import ModelFile, open_model
from unit.models import gguf_files
from unit.models.gguf_files import HIDDEN, VOCAB, write_gguf
from unit.models.hf_files import config, llama_tensors, write_directory


def open_tiny(path: Path, **files: object) -> ModelFile:
    return open_model(write_directory(path / "tiny", config(), llama_tensors(), **files))


def test_a_directory_opens_with_its_name_spec_and_size(tmp_path: Path) -> None:
    model = open_tiny(tmp_path)
    assert (model.path, model.name, model.format) == (tmp_path / "tiny", "tiny", "safetensors")
    assert model.size_bytes == (model.path / "model.safetensors").stat().st_size
    assert model.num_parameters == sum(tensor.size for tensor in llama_tensors().values())
    assert (model.precision, model.spec.hidden_size) == ("F32", HIDDEN)
    assert model.metadata["architectures"] == ["LlamaForCausalLM"]
    assert (model.chat_template, dict(model.sampling_defaults)) == (None, {})


def test_a_model_is_the_same_in_both_formats(tmp_path: Path) -> None:
    eps = float(np.float32(1e-5))  # GGUF's numbers are float32
    path = write_directory(tmp_path / "tiny", config(rms_norm_eps=eps), llama_tensors())
    directory = open_model(path)
    tensors = llama_tensors()
    tensors = {
        "token_embd.weight": tensors["model.embed_tokens.weight"],
        "output_norm.weight": tensors["model.norm.weight"],
    } | {
        f"blk.{layer}.{theirs}.weight": tensors[f"model.layers.{layer}.{ours}.weight"]
        for layer in range(2)
        for ours, theirs in {
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }.items()
    }
    for name, tensor in tensors.items():
        if "attn_q" in name or "attn_k" in name:  # halves of a head to pairs, as llama.cpp does
            halves = tensor.reshape(-1, 2, gguf_files.HEAD_DIM // 2, HIDDEN)
            tensors[name] = halves.swapaxes(1, 2).reshape(tensor.shape)
    file = open_model(write_gguf(tmp_path / "m.gguf", gguf_files.llama_metadata(), tensors))
    assert file.spec == directory.spec
    assert file.num_parameters == directory.num_parameters
    ours, theirs = file.load_weights(), directory.load_weights()
    np.testing.assert_array_equal(ours.embedding, theirs.embedding)
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        for field in ("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


def test_shards_are_one_model(tmp_path: Path) -> None:
    tensors = list(llama_tensors().items())
    shards = [dict(tensors[:7]), dict(tensors[7:])]
    model = open_model(write_directory(tmp_path / "m", config(), shards))
    for name, loaded in (
        ("model.embed_tokens.weight", model.load_weights().embedding),
        ("model.layers.1.mlp.down_proj.weight", list(model.load_weights().layers)[1].down),
    ):
        np.testing.assert_array_equal(loaded, llama_tensors()[name])


def test_gemmas_norms_are_one_more_than_stored(tmp_path: Path) -> None:
    tensors = llama_tensors()
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.full(HIDDEN, len(name), np.float32)
        for name in ("q_norm", "k_norm"):
            tensors[f"{prefix}self_attn.{name}.weight"] = np.full(4, 0.25, np.float32)
    weights = open_model(write_directory(tmp_path / "m", config("gemma3"), tensors)).load_weights()
    layer = list(weights.layers)[1]
    prefix = "model.layers.1."
    for loaded, name in (
        (weights.final_norm, "model.norm"),
        (layer.attention_norm, prefix + "input_layernorm"),
        (layer.attention_post_norm, prefix + "post_attention_layernorm"),
        (layer.mlp_norm, prefix + "pre_feedforward_layernorm"),
        (layer.mlp_post_norm, prefix + "post_feedforward_layernorm"),
        (layer.q_norm, prefix + "self_attn.q_norm"),
        (layer.k_norm, prefix + "self_attn.k_norm"),
    ):
        np.testing.assert_array_equal(loaded, tensors[f"{name}.weight"] + np.float32(1))
    np.testing.assert_array_equal(layer.q, tensors[prefix + "self_attn.q_proj.weight"])


def test_a_head_is_used_where_there_is_one_and_needed_where_it_is_not_tied(tmp_path: Path) -> None:
    head = np.full((VOCAB, HIDDEN), 3, np.float32)
    path = write_directory(tmp_path / "m", config(), llama_tensors() | {"lm_head.weight": head})
    np.testing.assert_array_equal(open_model(path).load_weights().head, head)
    untied = config(tie_word_embeddings=False)
    path = write_directory(tmp_path / "n", untied, llama_tensors())
    with pytest.raises(ModelError, match=r"n: tensors are missing: lm_head\.weight"):
        open_model(path)


def test_rotary_buffers_of_old_checkpoints_are_no_weights(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    buffers = {name: np.ones(2, np.float32)}
    model = open_model(write_directory(tmp_path / "m", config(), llama_tensors() | buffers))
    assert model.num_parameters == sum(tensor.size for tensor in llama_tensors().values())


def test_a_tensor_that_no_spec_speaks_of_is_refused(tmp_path: Path) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(16, np.float32)}
    path = write_directory(tmp_path / "m", config(), llama_tensors() | bias)
    with pytest.raises(UnsupportedModel, match=r"m: tensor '.*bias': not supported in the llama"):
        open_model(path)


def test_a_wrong_shape_is_named_with_both(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"'model\.embed_tokens\.weight': .*\[11, 16\], .*\[10, 16"
    ):
        open_model(write_directory(tmp_path / "m", config(vocab_size=11), llama_tensors()))


def test_safetensors_go_before_a_gguf_file_beside_them(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m", config(), llama_tensors())
    file = write_gguf(path / "m.gguf", gguf_files.llama_metadata(), gguf_files.llama_tensors())
    assert open_model(path).format == "safetensors"
    assert open_model(file).format == "GGUF"


def test_a_gguf_file_beside_a_config_is_the_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", gguf_files.llama_metadata(), gguf_files.llama_tensors())
    (tmp_path / "config.json").write_text("{}")
    assert open_model(tmp_path).format == "GGUF"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "and no config.json, which is needed"),
        ("consolidated.safetensors", "neither model.safetensors nor .*, only consolidated.safe"),
    ],
)
def test_a_directory_that_lacks_a_part_says_which(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).touch()
    if name != "model.safetensors":
        (tmp_path / "config.json").write_text(json.dumps(config()))
    with pytest.raises(ModelError, match=message):
        open_model(tmp_path)


BAD_JSON = {
    "empty": (b"", "is not a JSON object"),
    "cut": (b'{"a": ', "is not a JSON object"),
    "an array": (b"[]", "is not a JSON object"),
    "nested without end": (b'{"a":' + b"[" * 100_000, "is not a JSON object"),
    "an endless number": (b'{"a": 1' + b"0" * 5000 + b"}", "is not a JSON object"),
    "no UTF-8": (b'{"a": "\xff"}', r"is not UTF-8 \(byte 7\)"),
    "huge": (b" " * (4 << 20) + b"{}", "is larger than 4194304 bytes"),
}


@pytest.mark.parametrize("file", ["config", "generation_config", "tokenizer_config"])
@pytest.mark.parametrize("kind", BAD_JSON)
def test_a_broken_json_file_is_named(tmp_path: Path, file: str, kind: str) -> None:
    data, message = BAD_JSON[kind]
    path = write_directory(tmp_path / "m", config(), llama_tensors())
    (path / f"{file}.json").write_bytes(data)
    with pytest.raises(ModelError, match=rf"{file}\.json: {message}"):
        open_model(path)


# Chat templates.


def test_a_template_file_goes_before_the_tokenizers_config(tmp_path: Path) -> None:
    path = write_directory(
        tmp_path / "m", config(), llama_tensors(), tokenizer_config={"chat_template": "old"}
    )
    assert open_model(path).chat_template == "old"
    (path / "chat_template.json").write_text('{"chat_template": "newer"}')
    assert open_model(path).chat_template == "newer"
    (path / "chat_template.jinja").write_text("{{ 'neu' }}\n")
    assert open_model(path).chat_template == "{{ 'neu' }}\n"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    assert open_tiny(tmp_path, tokenizer_config={"chat_template": templates}).chat_template == "b"
    with pytest.raises(UnsupportedModel, match="none is named 'default'"):
        open_tiny(tmp_path, tokenizer_config={"chat_template": templates[:1]})


@pytest.mark.parametrize("template", [7, {"default": "a"}, [{"name": "default", "template": 7}]])
def test_a_template_that_is_no_text_is_an_error(tmp_path: Path, template: object) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template: is .* not a str"):
        open_tiny(tmp_path, tokenizer_config={"chat_template": template})


# Sampling defaults.


def test_sampling_defaults_are_those_that_the_file_has(tmp_path: Path) -> None:
    generation = {
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": None,
        "repetition_penalty": 1.05,
        "max_length": 99,
    }
    assert dict(open_tiny(tmp_path, generation_config=generation).sampling_defaults) == {
        "temperature": 0.7,
        "top_k": 20,
        "repetition_penalty": 1.05,
    }


def test_no_sampling_is_temperature_0(tmp_path: Path) -> None:
    generation = {"do_sample": False, "temperature": 0.7}
    assert dict(open_tiny(tmp_path, generation_config=generation).sampling_defaults) == {
        "temperature": 0
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", "hot"), ("top_k", 1.5), ("top_p", True), ("min_p", [1]), ("do_sample", 0)],
)
def test_a_sampling_default_of_another_kind_is_named(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(ModelError, match=rf"generation_config\.json: {key}: must be"):
        open_tiny(tmp_path, generation_config={key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("temperature", 10**1000),
        ("top_k", -7),
        ("top_p", 5),
        ("top_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
    ],
)
def test_a_sampling_default_that_no_request_may_have_is_named(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(ModelError, match=rf"generation_config\.json: {key}: must be") as caught:
        open_tiny(tmp_path, generation_config={key: value, "do_sample": False})
    assert len(str(caught.value)) < 400 + len(str(tmp_path))
