from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import ModelError, UnsupportedModel
from headway.models import gguf as ours
from headway.models.gguf import SUPPORTED_TYPES, GGUFFile
from unit.models.gguf_files import (
    ARRAY,
    FLOAT32,
    STRING,
    UINT32,
    field,
    raw_gguf,
    string,
    tensor,
    write_gguf,
)


def write(path: Path, data: bytes) -> Path:
    file = path / "m.gguf"
    file.write_bytes(data)
    return file


def test_a_file_of_the_gguf_package_reads_back_as_written(tmp_path: Path) -> None:
    metadata = {
        "a.int": 7,
        "a.float": 0.5,
        "a.true": True,
        "a.text": "naïve 🙂",
        "a.ints": (1, -2, 3),
        "a.floats": (0.25, -1.5),
        "a.texts": ("x", "", "ÿ"),
    }
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_gguf(tmp_path / "m.gguf", metadata, {"w": matrix, "n": matrix[0]})
    file = GGUFFile.open(path)
    assert file.metadata == {"general.architecture": "llama", **metadata}
    assert file.size_bytes == path.stat().st_size
    assert list(file.tensors) == ["w", "n"]
    assert file.tensors["w"].shape == (2, 3)
    np.testing.assert_array_equal(file.load("w"), matrix)
    np.testing.assert_array_equal(file.load("n"), matrix[0])


def test_version_2_is_read(tmp_path: Path) -> None:
    data = raw_gguf(version=2, fields=(field("k", UINT32, struct.pack("<I", 9)),))
    assert GGUFFile.open(write(tmp_path, data)).metadata == {"k": 9}


@pytest.mark.parametrize("number", ours._TYPES)
def test_every_known_type_has_the_layout_of_the_gguf_package(number: int) -> None:
    kind = gguf.GGMLQuantizationType(number)
    assert ours._TYPES[number] == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize(
    "name", [name for name, _, _ in ours._TYPES.values() if name not in SUPPORTED_TYPES]
)
def test_a_tensor_of_a_known_type_is_described_though_it_does_not_load(
    tmp_path: Path, name: str
) -> None:
    kind = gguf.GGMLQuantizationType[name]
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = raw_gguf(
        tensors=(tensor("v", (8,)), tensor("w", (3, block), kind.value, offset=32)),
        data=bytes(32 + 3 * num_bytes),
    )
    file = GGUFFile.open(write(tmp_path, data))
    assert (file.tensors["w"].type, file.tensors["w"].data.nbytes) == (name, 3 * num_bytes)
    with pytest.raises(UnsupportedModel, match=f"'w': has type {name}; those that .*Q6_K"):
        file.check_types()


QUANTISABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SCALES_AT = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,),
}  # fmt: skip
"""Offsets of the float16 scales in a block; `gguf` can dequantise these types only."""


def packed_tensor(name: str) -> np.ndarray:
    """[3, bytes per row of 512] of any values: quantised ones, or random bits with sane scales."""
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.default_rng(kind.value)
    if name in QUANTISABLE:
        values = rng.normal(0, 0.1, (3, 512)).astype(np.float32)
        return np.ascontiguousarray(gguf.quantize(values, kind)).view(np.uint8).reshape(3, -1)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (3, 512 // block, block_bytes), np.uint8)
    for offset in SCALES_AT[name]:
        scales = rng.normal(0, 0.1, (3, 512 // block, 1)).astype(np.float16)
        blocks[..., offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(3, -1)


@pytest.mark.parametrize("name", SUPPORTED_TYPES)
def test_a_tensor_of_every_type_loads_as_the_gguf_package_dequantises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert {*QUANTISABLE, *SCALES_AT} == set(SUPPORTED_TYPES)
    kind = gguf.GGMLQuantizationType[name]
    packed = packed_tensor(name)
    before = packed_tensor("F32")  # so that the tensor does not begin at 0
    data = raw_gguf(
        tensors=(
            tensor("v", (3, 512)),
            tensor("w", (3, 512), kind.value, offset=before.nbytes),
        ),
        data=before.tobytes() + packed.tobytes(),
    )
    file = GGUFFile.open(write(tmp_path, data))
    loaded = file.load("w")
    expected = gguf.dequantize(packed, kind).reshape(3, 512)
    assert (loaded.dtype, file.tensors["w"].type) == (np.float32, name)
    assert np.isfinite(expected).all()
    assert len(np.unique(expected)) > 30
    np.testing.assert_array_equal(loaded, expected)
    np.testing.assert_array_equal(file.load("w", slice(1, 3)), expected[1:3])
    monkeypatch.setattr(ours, "_SLICE_ELEMENTS", 1024)  # one slice and half of another
    np.testing.assert_array_equal(file.load("w"), expected)


@pytest.mark.parametrize("name", QUANTISABLE)
def test_a_quantised_tensor_loads_close_to_what_was_quantised(tmp_path: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(kind.value).normal(0, 0.1, (3, 512)).astype(np.float32)
    data = raw_gguf(
        tensors=(tensor("w", (3, 512), kind.value),), data=packed_tensor(name).tobytes()
    )
    loaded = GGUFFile.open(write(tmp_path, data)).load("w")
    np.testing.assert_allclose(loaded, values, atol=0.04 if "4" in name else 0.02)


def test_tensor_bytes_are_a_read_only_view_and_loaded_values_are_not(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": np.ones((2, 32), np.float32)})
    file = GGUFFile.open(path)
    assert not file.tensors["w"].data.flags.writeable
    assert not file.tensors["w"].data.flags.owndata
    assert file.load("w").flags.writeable


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="/proc tells the memory")
def test_what_was_loaded_leaves_no_page_of_the_file_in_memory(tmp_path: Path) -> None:
    values = np.ones((1024, 1024), np.float32)
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": values})

    def resident() -> int:
        maps = Path("/proc/self/smaps").read_text().partition(str(path))[2]
        return int(maps.partition("\nRss:")[2].split()[0]) * 1024

    file = GGUFFile.open(path)
    assert file.tensors["w"].data.sum() > 0
    assert resident() > values.nbytes
    np.testing.assert_array_equal(file.load("w"), values)
    assert resident() < values.nbytes / 16


def test_a_tensor_outlives_its_file_object(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": np.ones((2, 32), np.float32)})
    data = GGUFFile.open(path).tensors["w"].data
    np.testing.assert_array_equal(data.view(np.float32), np.ones((2, 32), np.float32))


def test_loading_an_absent_tensor_names_it(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path, raw_gguf()))
    with pytest.raises(ModelError, match="no tensor 'w'"):
        file.load("w")


HUGE = 2**63
F32_ROW = struct.pack("<8f", *range(8))

BROKEN = {
    "empty file": (b"", "the file is empty"),
    "wrong magic": (b"PK\x03\x04 and more", r"magic: is b'PK\\x03\\x04'.*not a GGUF file"),
    "three bytes": (b"GGU", "magic: is b'GGU'"),
    "magic alone": (b"GGUF", "version: .*truncated"),
    "truncated header": (raw_gguf()[:20], "metadata count: .*truncated"),
    "absurd tensor count": (raw_gguf(num_tensors=HUGE), "tensor count: .*truncated"),
    "absurd metadata count": (raw_gguf(num_fields=HUGE), "metadata count: .*truncated"),
    "metadata count past the end": (raw_gguf(num_fields=1), "metadata count: .*truncated"),
    "absurd key length": (
        raw_gguf(fields=(struct.pack("<Q", HUGE) + bytes(16),)),
        "key of metadata field 0: .*truncated",
    ),
    "absurd string length": (
        raw_gguf(fields=(field("k", STRING, struct.pack("<Q", HUGE)),)),
        "k: .*truncated",
    ),
    "absurd array length": (
        raw_gguf(fields=(field("k", ARRAY, struct.pack("<IQ", UINT32, HUGE)),)),
        "k: .*truncated",
    ),
    "absurd array of strings": (
        raw_gguf(fields=(field("k", ARRAY, struct.pack("<IQ", STRING, HUGE)),)),
        "k: .*truncated",
    ),
    "nested arrays": (
        raw_gguf(fields=(field("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(12)),)),
        "k: is an array of arrays",
    ),
    "unknown value type": (
        raw_gguf(fields=(field("k", 99, bytes(8)),)),
        "k: has value type 99",
    ),
    "unknown array type": (
        raw_gguf(fields=(field("k", ARRAY, struct.pack("<IQ", 99, 0)),)),
        "k: is an array of value type 99",
    ),
    "text that is no UTF-8": (
        raw_gguf(fields=(field("k", STRING, string(b"a\xff")),)),
        "k: is not UTF-8",
    ),
    "key twice": (
        raw_gguf(fields=(field("k", UINT32, bytes(4)),) * 2),
        "k: is there twice",
    ),
    "alignment 0": (
        raw_gguf(fields=(field("general.alignment", UINT32, bytes(4)),)),
        "general.alignment: is 0",
    ),
    "alignment of a wrong type": (
        raw_gguf(fields=(field("general.alignment", FLOAT32, bytes(4)),)),
        "general.alignment: is 0.0",
    ),
    "tensor twice": (
        raw_gguf(tensors=(tensor("w", (8,)), tensor("w", (8,), offset=32)), data=F32_ROW * 2),
        "tensor 'w': is there twice",
    ),
    "no dimensions": (raw_gguf(tensors=(tensor("w", ()) + bytes(8),)), "'w': has 0 dimensions"),
    "five dimensions": (raw_gguf(tensors=(tensor("w", (1,) * 5),)), "'w': has 5 dimensions"),
    "absurd number of dimensions": (
        raw_gguf(tensors=(string("w") + struct.pack("<I", 2**32 - 1) + bytes(32),)),
        "'w': has 4294967295 dimensions",
    ),
    "dimension of 0": (raw_gguf(tensors=(tensor("w", (3, 0)),)), r"'w': .*\[3, 0\]"),
    "absurd dimensions": (
        raw_gguf(tensors=(tensor("w", (HUGE, HUGE)),), data=F32_ROW),
        "'w': ends at byte .*past the end",
    ),
    "data past the end": (
        raw_gguf(tensors=(tensor("w", (9,)),), data=F32_ROW),
        "'w': ends at byte 100, past the end of the file .96 bytes",
    ),
    "absurd offset": (
        raw_gguf(tensors=(tensor("w", (8,), offset=HUGE),), data=F32_ROW),
        "'w': ends at byte .*past the end",
    ),
    "unaligned offset": (
        raw_gguf(tensors=(tensor("w", (4,), offset=4),), data=F32_ROW),
        "'w': offset 4 is no multiple of 32",
    ),
    "overlapping tensors": (
        raw_gguf(tensors=(tensor("a", (8,)), tensor("b", (8,))), data=F32_ROW),
        "'b': at offset 0 overlaps",
    ),
    "row that is no multiple of the block": (
        raw_gguf(tensors=(tensor("w", (2, 33), 8),), data=bytes(100)),
        "'w': has rows of 33 elements, no multiple of Q8_0's block of 32",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_file_and_field(tmp_path: Path, name: str) -> None:
    data, message = BROKEN[name]
    path = write(tmp_path, data)
    with pytest.raises(ModelError, match=message) as caught:
        GGUFFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert not isinstance(caught.value, UnsupportedModel)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (raw_gguf(version=1), "version: is 1; 2 and 3"),
        (raw_gguf(version=4), "version: is 4; 2 and 3"),
        (raw_gguf(version=3 << 24), "version: is 3, big-endian"),
        (raw_gguf(tensors=(tensor("w", (8,), 77),)), "'w': has type 77; those that work"),
        (
            raw_gguf(fields=(field("k", STRING, string(bytes((4 << 20) + 1))),)),
            "k: is a string of 4194305 bytes; up to 4194304",
        ),
        (
            raw_gguf(fields=(field("k", ARRAY, struct.pack("<IQ", 0, 1 << 23) + bytes(1 << 23)),)),
            "k: has 8388608 items; 4194304 in all arrays",
        ),
        (
            raw_gguf(fields=(bytes(13 << 17),), num_fields=1 << 17),
            "metadata count: is 131072; up to 65536",
        ),
    ],
)
def test_what_is_sound_and_not_read_here_is_refused_by_name(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        GGUFFile.open(write(tmp_path, data))


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf: cannot be read: No such file"):
        GGUFFile.open(tmp_path / "nothing.gguf")


SOUND = raw_gguf(
    fields=(
        field("general.alignment", UINT32, struct.pack("<I", 32)),
        field("texts", ARRAY, struct.pack("<IQ", STRING, 2) + string("a") + string("b")),
        field("numbers", ARRAY, struct.pack("<IQ4B", 0, 4, 1, 2, 3, 4)),
    ),
    tensors=(tensor("a", (2, 4)), tensor("b", (8,), offset=32)),
    data=F32_ROW * 2,
)


@pytest.mark.parametrize("length", range(len(SOUND)))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ModelError):
        GGUFFile.open(write(tmp_path, SOUND[:length]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.integers(4, len(SOUND) - 1), st.integers(0, 255), min_size=1),
)
def test_a_file_with_changed_bytes_opens_or_is_refused(
    tmp_path: Path, changes: dict[int, int]
) -> None:
    data = bytearray(SOUND)
    for position, byte in changes.items():
        data[position] = byte
    path = write(tmp_path, bytes(data))
    try:
        file = GGUFFile.open(path)
        file.check_types()
    except ModelError:
        return
    for name, info in file.tensors.items():
        assert file.load(name).shape == info.shape
