from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.errors import ModelError, ModelNotFound, UnsupportedModel
from headway.models.gguf import GGUFFile
from headway.models.weights import load_weights, open_model
from unit.models.gguf_files import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    llama_metadata,
    llama_tensors,
    write_gguf,
)


def write_llama(path: Path, tensors: dict[str, np.ndarray] | None = None, **more: object) -> Path:
    return write_gguf(path, llama_metadata() | more, tensors or llama_tensors())


def test_a_model_opens_with_its_name_spec_and_size(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.Q8.gguf")
    model = open_model(path)
    assert (model.path, model.name) == (path, "tiny.Q8")
    assert model.size_bytes == path.stat().st_size
    assert (model.spec.hidden_size, model.spec.vocab_size) == (HIDDEN, VOCAB)
    assert model.metadata["general.architecture"] == "llama"


def test_weights_are_the_files_by_canonical_name(tmp_path: Path) -> None:
    tensors = llama_tensors()
    weights = open_model(write_llama(tmp_path / "m.gguf")).load_weights()
    np.testing.assert_array_equal(weights.embedding, tensors["token_embd.weight"])
    np.testing.assert_array_equal(weights.final_norm, tensors["output_norm.weight"])
    assert len(weights.layers) == 2
    for index, layer in enumerate(weights.layers):
        for ours, theirs in {
            "attention_norm": "attn_norm",
            "v": "attn_v",
            "o": "attn_output",
            "mlp_norm": "ffn_norm",
            "gate": "ffn_gate",
            "up": "ffn_up",
            "down": "ffn_down",
        }.items():
            stored = tensors[f"blk.{index}.{theirs}.weight"]
            np.testing.assert_array_equal(getattr(layer, ours), stored)


@pytest.mark.parametrize(("name", "heads"), [("q", HEADS), ("k", KV_HEADS)])
def test_rows_of_q_and_k_go_from_pairs_to_halves(tmp_path: Path, name: str, heads: int) -> None:
    stored = llama_tensors()[f"blk.1.attn_{name}.weight"]
    weights = open_model(write_llama(tmp_path / "m.gguf")).load_weights()
    loaded = getattr(weights.layers[1], name)
    for head in range(heads):
        first = head * HEAD_DIM
        for pair in range(HEAD_DIM // 2):
            for half in range(2):
                np.testing.assert_array_equal(
                    loaded[first + half * (HEAD_DIM // 2) + pair], stored[first + 2 * pair + half]
                )


def test_the_head_is_the_embedding_where_the_file_has_none(tmp_path: Path) -> None:
    weights = open_model(write_llama(tmp_path / "m.gguf")).load_weights()
    assert weights.head is weights.embedding


def test_a_head_of_its_own_is_used(tmp_path: Path) -> None:
    head = np.full((VOCAB, HIDDEN), 3, np.float32)
    path = write_llama(tmp_path / "m.gguf", llama_tensors() | {"output.weight": head})
    np.testing.assert_array_equal(open_model(path).load_weights().head, head)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["output_norm.weight"], tensors["blk.1.ffn_up.weight"]
    path = write_llama(tmp_path / "m.gguf", tensors)
    with pytest.raises(
        ModelError, match=r"m\.gguf: tensors are missing: output_norm.weight, blk\.1\.ffn_up"
    ):
        open_model(path)


def test_an_absurd_number_of_layers_ends_at_once(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", **{"llama.block_count": 2**32 - 1})
    with pytest.raises(ModelError, match=r"tensors are missing: blk\.2\.attn_norm"):
        open_model(path)


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight", "output.weight"]
)
def test_a_wrong_shape_is_named_with_both(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors() | {name: np.zeros((5, 7), np.float32)}
    with pytest.raises(ModelError, match=rf"'{name}': .*shape \[\d+.*the file has \[5, 7\]"):
        open_model(write_llama(tmp_path / "m.gguf", tensors))


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_inp.weight"]
)
def test_a_tensor_that_no_spec_speaks_of_is_refused(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors() | {name: np.zeros(4, np.float32)}
    with pytest.raises(UnsupportedModel, match=f"m.gguf: tensor '{name}': not supported"):
        open_model(write_llama(tmp_path / "m.gguf", tensors))


def test_a_spec_of_another_model_does_not_load(tmp_path: Path) -> None:
    large = open_model(write_llama(tmp_path / "large.gguf"))
    small = write_llama(tmp_path / "s.gguf", llama_tensors(1), **{"llama.block_count": 1})
    with pytest.raises(ModelError, match=r"missing: blk\.1\.attn_norm"):
        load_weights(GGUFFile.open(small), large.spec)


def test_a_file_that_is_one_of_several_is_refused(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m-00001-of-00002.gguf", **{"split.count": 2})
    with pytest.raises(UnsupportedModel, match=r"split\.count"):
        open_model(path)


def test_a_directory_with_one_model_is_that_model(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    (tmp_path / "README.md").write_text("a model")
    assert open_model(tmp_path).path == path


def test_a_directory_with_several_models_lists_them(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"several models, name one of them: a\.gguf, b\.gguf"):
        open_model(tmp_path)


def test_a_directory_of_safetensors_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModel, match="safetensors"):
        open_model(tmp_path)


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no \.gguf file"):
        open_model(tmp_path)


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: no such file"):
        open_model(tmp_path / "none.gguf")
