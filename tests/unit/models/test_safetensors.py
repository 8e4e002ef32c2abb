from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headway.errors import ModelError, UnsupportedModel
from headway.models.safetensors import SafetensorsFile, ShardedSafetensors
from unit.models.hf_files import raw_safetensors, write_directory

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write(path: Path, data: bytes) -> Path:
    file = path / "m.safetensors"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_the_safetensors_package_read_back_exactly(tmp_path: Path, name: str) -> None:
    values = torch.randn((5, 7), generator=torch.Generator().manual_seed(0)) * 100
    values[0, 0], values[0, 1], values[0, 2] = 0.0, torch.inf, 1e-6
    values = values.to(TYPES[name])
    path = tmp_path / "m.safetensors"
    save_file({"w": values, "n": values[1].clone()}, path, metadata={"format": "pt"})
    file = SafetensorsFile.open(path)
    assert {n: (t.shape, t.type) for n, t in file.tensors.items()} == {
        "w": ((5, 7), name),
        "n": ((7,), name),
    }
    assert file.size_bytes == path.stat().st_size
    assert file.load("w").dtype == np.float32
    np.testing.assert_array_equal(file.load("w"), values.float().numpy())
    np.testing.assert_array_equal(file.load("w", slice(1, 4)), values[1:4].float().numpy())
    np.testing.assert_array_equal(file.load("n"), values[1].float().numpy())


def test_loaded_values_are_the_callers_own(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"w": torch.ones(4)}, path)
    file = SafetensorsFile.open(path)
    file.load("w")[:] = 5
    np.testing.assert_array_equal(file.load("w"), np.ones(4))
    assert not file.tensors["w"].data.flags.writeable


def test_data_need_not_be_aligned(tmp_path: Path) -> None:
    header = json.dumps(entry((2,), 8)).encode()
    header += b" " * (1 - len(header) % 2)  # of an odd length
    assert (len(header) + 8) % 2
    data = np.array([1.5, -2.0], "<f4").tobytes()
    file = SafetensorsFile.open(write(tmp_path, raw_safetensors(header, data)))
    np.testing.assert_array_equal(file.load("w"), [1.5, -2.0])


def test_loading_an_absent_tensor_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tensor 'w'"):
        SafetensorsFile.open(write(tmp_path, raw_safetensors({}))).load("w")


def entry(
    shape: tuple[object, ...], end: int, begin: int = 0, kind: object = "F32", name: str = "w"
) -> dict[str, object]:
    return {name: {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}}


HUGE = 2**63
BROKEN = {
    "empty file": (b"", "0 bytes are no safetensors file"),
    "seven bytes": (bytes(7), "7 bytes are no safetensors file"),
    "header past the end": (raw_safetensors({}, length=3), "header: 3 bytes are announced and 2"),
    "absurd header": (raw_safetensors({}, length=HUGE), "header: 9223372036854775808 bytes"),
    "no header": (bytes(8), "header: is not a JSON object"),
    "no JSON": (raw_safetensors(b"{'a'"), "header: is not a JSON object"),
    "no object": (raw_safetensors([1]), "header: is not a JSON object"),
    "nested without end": (raw_safetensors(b'{"w":' + b"[" * 99999), "header: is not a JSON"),
    "entry that is none": (raw_safetensors({"w": 1}), "tensor 'w': Expected `object`"),
    "entry without offsets": (
        raw_safetensors({"w": {"dtype": "F32", "shape": []}}),
        "tensor 'w': .*missing required field `data_offsets`",
    ),
    "entry with another field": (
        raw_safetensors({"w": entry((1,), 4)["w"] | {"x": 1}}, bytes(4)),  # type: ignore[operator]
        "tensor 'w': .*unknown field `x`",
    ),
    "type that is no string": (raw_safetensors(entry((1,), 4, kind=4), bytes(4)), "'w': Expected"),
    "shape of floats": (raw_safetensors(entry((1.5,), 4), bytes(4)), "'w': Expected `int`"),
    "negative dimension": (raw_safetensors(entry((-1,), 4), bytes(4)), "'w': a shape is up to"),
    "dimension of 0": (raw_safetensors(entry((0,), 0)), "'w': a shape is up to"),
    "absurd dimension": (raw_safetensors(entry((HUGE,), 4), bytes(4)), "'w': a shape is up to"),
    "too many dimensions": (
        raw_safetensors(entry((1,) * 9, 4), bytes(4)),
        "'w': a shape is up to 8 whole numbers",
    ),
    "absurd shape": (
        raw_safetensors(entry((HUGE - 1,) * 8, 4), bytes(4)),
        r"'w': shape .* in F32 needs \d+ bytes, and its offsets are 0 to 4",
    ),
    "offsets of another size": (
        raw_safetensors(entry((2,), 4), bytes(4)),
        r"'w': shape \[2\] in F32 needs 8 bytes, and its offsets are 0 to 4",
    ),
    "negative offset": (
        raw_safetensors(entry((1,), 0, begin=-4), bytes(4)),
        "'w': .* its offsets are -4 to 0",
    ),
    "three offsets": (
        raw_safetensors({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}),
        "'w': Expected `array` of length 2",
    ),
    "bytes before the first": (
        raw_safetensors(entry((1,), 8, begin=4), bytes(8)),
        "'w': begins at offset 4, and the one before it ends at 0",
    ),
    "overlapping tensors": (
        raw_safetensors(entry((2,), 8) | entry((2,), 12, 4, name="v"), bytes(12)),
        "'v': begins at offset 4, and the one before it ends at 8",
    ),
    "the same bytes twice": (
        raw_safetensors(entry((1,), 4) | entry((1,), 4, name="v"), bytes(4)),
        "'.': begins at offset 0, and the one before it ends at 4",
    ),
    "tensor twice": (
        raw_safetensors(
            b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            bytes(8),
        ),
        "'w': begins at offset 4",
    ),
    "data past the end": (
        raw_safetensors(entry((2,), 8), bytes(7)),
        r"the tensors end at byte \d+ and the file at \d+: it is truncated",
    ),
    "bytes after the last": (raw_safetensors(entry((2,), 8), bytes(9)), "the tensors end at byte"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_file_and_field(tmp_path: Path, name: str) -> None:
    data, message = BROKEN[name]
    path = write(tmp_path, data)
    with pytest.raises(ModelError, match=message) as caught:
        SafetensorsFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 700
    assert not isinstance(caught.value, UnsupportedModel)


@pytest.mark.parametrize("kind", ["F64", "I64", "F8_E4M3", "BOOL", "x" * 1000])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, raw_safetensors(entry((1,), 8, kind=kind), bytes(8)))
    with pytest.raises(UnsupportedModel, match=rf"'w': has type '{kind[:18]}.*: F32, F16, BF16"):
        SafetensorsFile.open(path)


def test_a_header_of_megabytes_is_refused_unread(tmp_path: Path) -> None:
    path = write(tmp_path, raw_safetensors(b"[" * (1 << 20)))
    with path.open("r+b") as file:
        file.write((17 << 20).to_bytes(8, "little"))
        file.truncate(18 << 20)  # a hole, no disk is used
    with pytest.raises(UnsupportedModel, match="header: is of 17825792 bytes; up to 16777216"):
        SafetensorsFile.open(path)


def test_a_header_of_very_many_tensors_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, raw_safetensors({str(index): 0 for index in range(65537)}))
    with pytest.raises(UnsupportedModel, match="header: names 65537 tensors; up to 65536"):
        SafetensorsFile.open(path)


SOUND = raw_safetensors(
    {"__metadata__": {"format": "pt"}}
    | entry((2, 2), 16)
    | entry((3,), 22, 16, "BF16", "b")
    | entry((1,), 24, 22, "F16", "h"),
    bytes(24),
)


@pytest.mark.parametrize("length", range(len(SOUND)))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ModelError):
        SafetensorsFile.open(write(tmp_path, SOUND[:length]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.integers(0, len(SOUND) - 25), st.integers(0, 255), min_size=1))
def test_a_file_with_changed_bytes_opens_or_is_refused(
    tmp_path: Path, changes: dict[int, int]
) -> None:
    data = bytearray(SOUND)
    for position, byte in changes.items():
        data[position] = byte
    try:
        file = SafetensorsFile.open(write(tmp_path, bytes(data)))
    except ModelError:
        return
    for name, info in file.tensors.items():
        assert file.load(name).shape == info.shape


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, np.float16)


def sharded(path: Path) -> Path:
    write_directory(path, {}, [{"a": A}, {"b": B}])
    return path / "model.safetensors.index.json"


def edit_index(index: Path, **weight_map: object) -> Path:
    content = json.loads(index.read_text())
    content["weight_map"] |= weight_map
    content["weight_map"] = {k: v for k, v in content["weight_map"].items() if v is not None}
    index.write_text(json.dumps(content))
    return index


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    file = ShardedSafetensors.open(sharded(tmp_path))
    assert set(file.tensors) == {"a", "b"}
    np.testing.assert_array_equal(file.load("a"), A)
    np.testing.assert_array_equal(file.load("b"), B)
    assert file.size_bytes == sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors: cannot be read: No"):
        ShardedSafetensors.open(index)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "a/b", "", 7, None, "."])
def test_shards_lie_beside_the_index(tmp_path: Path, name: object) -> None:
    index = sharded(tmp_path)
    content = {"weight_map": {"a": name}}
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"index\.json: weight_map: 'a' is in .* no name of a"):
        ShardedSafetensors.open(index)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map_is_an_error(tmp_path: Path, weight_map: object) -> None:
    index = sharded(tmp_path)
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=r"index\.json: weight_map: must be an object"):
        ShardedSafetensors.open(index)


def test_a_tensor_is_where_the_index_says(tmp_path: Path) -> None:
    index = edit_index(sharded(tmp_path), c="model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"00001-of-00002\.safetensors: has no tensor 'c', which"):
        ShardedSafetensors.open(index)


def test_a_tensor_that_the_index_does_not_name_is_an_error(tmp_path: Path) -> None:
    write_directory(tmp_path, {}, [{"a": A, "c": B}, {"b": B}])
    index = edit_index(tmp_path / "model.safetensors.index.json", c=None)
    with pytest.raises(ModelError, match=r"00001-of-00002\.safetensors: tensor 'c': .*not put it"):
        ShardedSafetensors.open(index)
