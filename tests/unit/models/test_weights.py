from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.errors import ModelError, ModelNotFound, UnsupportedModel
from headway.models import loading
from headway.models.gguf import GGUFFile
from headway.models.spec import DecoderWeights, LayerWeights, row_parts
from headway.models.weights import open_model
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
    assert model.format == "GGUF"
    assert model.size_bytes == path.stat().st_size
    assert (model.spec.hidden_size, model.spec.vocab_size) == (HIDDEN, VOCAB)
    assert model.metadata["general.architecture"] == "llama"


def test_weights_are_the_files_by_canonical_name(tmp_path: Path) -> None:
    tensors = llama_tensors()
    weights = open_model(write_llama(tmp_path / "m.gguf")).load_weights()
    np.testing.assert_array_equal(weights.embedding, tensors["token_embd.weight"])
    np.testing.assert_array_equal(weights.final_norm, tensors["output_norm.weight"])
    layers = list(weights.layers)
    assert len(layers) == 2
    for index, layer in enumerate(layers):
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
    loaded = getattr(list(weights.layers)[1], name)
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
    with pytest.raises(ModelError, match=r"block_count: 4294967295 layers cannot be in 20"):
        open_model(path)


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight", "output.weight"]
)
def test_a_wrong_shape_is_named_with_both(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors() | {name: np.zeros((5, 7), np.float32)}
    with pytest.raises(ModelError, match=rf"'{name}': .*shape \[\d+.*the file has \[5, 7\]"):
        open_model(write_llama(tmp_path / "m.gguf", tensors))


def test_layers_are_missing_by_name(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", **{"llama.block_count": 3})
    with pytest.raises(ModelError, match=r"tensors are missing: blk\.2\.attn_norm"):
        open_model(path)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "blk.0.rope_freqs.weight", "blk.0.ffn_gate_inp.weight"]
)
def test_a_tensor_that_no_spec_speaks_of_is_refused(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors() | {name: np.zeros(4, np.float32)}
    with pytest.raises(UnsupportedModel, match=f"m.gguf: tensor '{name}': not supported"):
        open_model(write_llama(tmp_path / "m.gguf", tensors))


def test_rope_frequencies_of_a_llama_are_read_and_no_parameters(tmp_path: Path) -> None:
    plain = open_model(write_llama(tmp_path / "plain.gguf"))
    divisors = np.array([1.0, 8.0], np.float32)
    scaled = open_model(
        write_llama(tmp_path / "m.gguf", llama_tensors() | {"rope_freqs.weight": divisors})
    )
    before, after = (model.spec.attention[0].rope.frequencies for model in (plain, scaled))
    assert after == (before[0], before[1] / 8)
    assert scaled.num_parameters == plain.num_parameters


@pytest.mark.parametrize(
    "values", [[1.0, 0.0], [1.0, np.nan], [1.0], [[1.0, 1.0]], [1.0] * 513], ids=len
)
def test_rope_frequencies_that_are_none_are_refused(tmp_path: Path, values: list[float]) -> None:
    tensors = llama_tensors() | {"rope_freqs.weight": np.array(values, np.float32)}
    with pytest.raises(ModelError, match=r"m\.gguf: tensor 'rope_freqs\.weight': (must|has|hold)"):
        open_model(write_llama(tmp_path / "m.gguf", tensors))


def test_a_chat_template_is_the_files(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", **{"tokenizer.chat_template": "{{ messages }}"})
    assert open_model(path).chat_template == "{{ messages }}"
    assert open_model(write_llama(tmp_path / "n.gguf")).chat_template is None
    wrong = write_llama(tmp_path / "o.gguf", **{"tokenizer.chat_template": 7})
    with pytest.raises(ModelError, match=r"o\.gguf: tokenizer\.chat_template: is 7, not a string"):
        open_model(wrong)


def test_the_precision_is_that_of_most_weights(tmp_path: Path) -> None:
    tensors = llama_tensors()
    assert open_model(write_llama(tmp_path / "m.gguf", tensors)).precision == "F32"
    halves = {n: t.astype(np.float16) if t.ndim == 2 else t for n, t in tensors.items()}
    assert open_model(write_llama(tmp_path / "h.gguf", halves)).precision == "F16"


def test_layers_may_be_taken_again(tmp_path: Path) -> None:
    layers = open_model(write_llama(tmp_path / "m.gguf")).load_weights().layers
    once, again = list(layers), list(layers)
    for one, other in zip(once, again, strict=True):
        np.testing.assert_array_equal(one.q, other.q)
        assert one.q is not other.q


class Counting:
    """A file's tensors, and which were loaded."""

    def __init__(self, file: GGUFFile) -> None:
        self.tensors, self.size_bytes, self._file = file.tensors, file.size_bytes, file
        self.loaded: list[str] = []

    def load(self, name: str, rows: slice | None = None) -> np.ndarray:
        self.loaded.append(name)
        return self._file.load(name, rows)


def many_layers(tmp_path: Path) -> tuple[Counting, DecoderWeights]:
    path = write_llama(tmp_path / "m.gguf", llama_tensors(9), **{"llama.block_count": 9})
    model = open_model(path)
    file = Counting(GGUFFile.open(path))
    return file, loading.load_weights(file, model.spec, model._layout)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MAX_THREADS", 2)


@pytest.mark.usefixtures("two_threads")
def test_layers_are_loaded_a_few_tensors_ahead_of_the_one_taken(tmp_path: Path) -> None:
    file, weights = many_layers(tmp_path)
    assert file.loaded == ["output_norm.weight"]
    layers = iter(weights.layers)
    for index in range(9):
        assert isinstance(next(layers), LayerWeights)
        loaded = [name for name in file.loaded if name.startswith("blk.")]
        assert 9 * (index + 1) <= len(loaded) <= 9 * (index + 1) + 4
        assert sum(name.startswith(f"blk.{index}.") for name in file.loaded) == 9
    assert next(layers, None) is None


@pytest.mark.usefixtures("two_threads")
def test_giving_up_half_way_loads_no_more(tmp_path: Path) -> None:
    file, weights = many_layers(tmp_path)
    layers = iter(weights.layers)
    next(layers)
    layers.close()  # type: ignore[attr-defined]
    assert not any(name.startswith("blk.2.") for name in file.loaded)


@pytest.mark.usefixtures("two_threads")
def test_the_embedding_comes_in_parts_that_make_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_PART_BYTES", 4 * 4 * HIDDEN + 3)  # four rows
    file, weights = many_layers(tmp_path)
    assert weights.embedding.shape == (VOCAB, HIDDEN)
    parts = list(row_parts(weights.embedding))
    assert {len(part) for part in parts[:-1]} == {4}
    whole = file.load("token_embd.weight")
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(np.asarray(weights.embedding), whole)


def test_a_matrix_in_memory_is_one_part() -> None:
    matrix = np.zeros((3, 2), np.float32)
    [part] = row_parts(matrix)
    assert part is matrix


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


def test_a_directory_of_pickles_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "config.json").touch()
    with pytest.raises(UnsupportedModel, match=r"pytorch_model\.bin is a pickle, .* never read"):
        open_model(tmp_path)


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither a \.gguf file nor safetensors"):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json"])
def test_a_part_of_a_directory_is_no_model(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnsupportedModel, match=r"works is a \.gguf file, or the directory with"):
        open_model(tmp_path / name)


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: no such file"):
        open_model(tmp_path / "none.gguf")
