"""A bounded reader of GGUF files, versions 2 and 3.

Every count, length and offset is compared with the file's size before anything is
allocated for it, so a damaged or hostile file is refused at once. The layout is that of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from headway.errors import ModelError, UnsupportedModel
from headway.models.tensors import TensorInfo, forget_pages

__all__ = ["GGUFFile", "SUPPORTED_TYPES"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_COUNT = 1 << 16
"""Of tensors, and of metadata fields."""
_MAX_KEY_CHARACTERS = 1000
_MAX_STRING_BYTES = 4 << 20
"""The longest strings there are, chat templates, have some ten thousand."""
_MAX_ITEMS = 1 << 22
"""Of all arrays together: three times those of the largest vocabularies."""

_SLICE_ELEMENTS = 1 << 17
"""Dequantised at a time."""

_STRING, _ARRAY = 8, 9
_SCALAR_CODES = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip

# ggml type number → name, elements per block, bytes per block
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}

SUPPORTED_TYPES: tuple[str, ...] = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"),
)
"""Names of the tensor types that `GGUFFile.load` turns into float32."""


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file, mapped into memory for as long as this or one of its tensors is held."""

    path: Path
    size_bytes: int
    metadata: Mapping[str, object]
    """Scalars as int, float, bool or str; arrays as tuples of them."""
    tensors: Mapping[str, TensorInfo]
    _mapping: mmap.mmap

    @classmethod
    def open(cls, path: Path | str) -> GGUFFile:
        """Reads metadata and tensor descriptions; the tensors' bytes stay on disk.

        Raises:
            ModelError: the file cannot be read or is not a well-formed GGUF file.
            UnsupportedModel: it is of a version or byte order not read here, or holds a
                tensor of a type not known here.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size == 0:
                    raise ModelError(f"{path}: the file is empty")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
        cursor = _Cursor(path, data)
        num_tensors, num_fields = _read_header(cursor)
        metadata = _read_metadata(cursor, num_fields)
        tensors = _read_tensors(cursor, num_tensors, metadata)
        return cls(path, size, MappingProxyType(metadata), MappingProxyType(tensors), data)

    def check_types(self) -> None:
        """Raises `UnsupportedModel` naming a tensor of a known type that does not load."""
        for info in self.tensors.values():
            if info.type not in SUPPORTED_TYPES:
                raise UnsupportedModel(f"tensor {info.name!r:.80}: {_type_problem(info.type)}")

    def load(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """As `TensorFile.load`. `check_types` must have passed."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: there is no tensor {name!r}")
        assert info.type in SUPPORTED_TYPES
        data = info.data if rows is None else info.data[rows]
        values = _dequantised(data.reshape(-1), info.type)
        forget_pages(self._mapping)
        return values.reshape(-1, *info.shape[1:])


def _dequantised(data: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """The numbers of consecutive blocks."""
    # The package's import reaches for optional tokenizer libraries, some of them heavy.
    import gguf  # noqa: PLC0415

    number = gguf.GGMLQuantizationType[kind]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[number]
    values = np.empty(data.size // block_bytes * block_size, np.float32)
    # As one long row, which the package takes in one go; by so much that what it makes on the way
    # stays in the cache.
    step = _SLICE_ELEMENTS // block_size
    for begin in range(0, data.size // block_bytes, step):
        blocks = data[begin * block_bytes : (begin + step) * block_bytes]
        numbers = gguf.dequantize(blocks.reshape(1, -1), number).reshape(-1)
        values[begin * block_size : (begin + step) * block_size] = numbers
    return values


class _Cursor:
    """Reads little-endian values one after another and never past the end."""

    __slots__ = ("_data", "_path", "num_items", "position")

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.position = 0
        self.num_items = 0
        """Of the arrays so far."""

    def error(self, field: str, problem: str) -> ModelError:
        return ModelError(f"{self._path}: {field}: {problem}")

    def unsupported(self, field: str, problem: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._path}: {field}: {problem}")

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def check_room(self, field: str, count: int, item_bytes: int) -> None:
        """Raises unless `count` items of at least `item_bytes` each can still follow."""
        if count * item_bytes > self.remaining:
            raise self.error(
                field,
                f"{count} × at least {item_bytes} bytes are announced at byte {self.position} "
                f"and {self.remaining} are left: the file is truncated or damaged",
            )

    def take(self, field: str, num_bytes: int) -> bytes:
        self.check_room(field, num_bytes, 1)
        start = self.position
        self.position = start + num_bytes
        return self._data[start : self.position]

    def scalars(self, field: str, code: str, count: int = 1) -> tuple[object, ...]:
        self.check_room(field, count, struct.calcsize(f"<{code}"))
        return struct.unpack(
            f"<{count}{code}", self.take(field, struct.calcsize(f"<{count}{code}"))
        )

    def uint32(self, field: str) -> int:
        return int.from_bytes(self.take(field, 4), "little")

    def uint64(self, field: str) -> int:
        return int.from_bytes(self.take(field, 8), "little")

    def string(self, field: str) -> str:
        length = self.uint64(field)
        self.check_room(field, length, 1)
        if length > _MAX_STRING_BYTES:
            raise self.unsupported(
                field, f"is a string of {length} bytes; up to {_MAX_STRING_BYTES} are read"
            )
        raw = self.take(field, length)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(field, f"is not UTF-8 ({raw[:40]!r})") from error

    def view(self, start: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._data, np.uint8, num_bytes, start)


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Returns the number of tensors and of metadata fields."""
    magic = cursor.take("magic", min(4, cursor.remaining))
    if magic != _MAGIC:
        raise cursor.error("magic", f"is {magic!r}, not {_MAGIC!r}: this is not a GGUF file")
    version = cursor.uint32("version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = f"{swapped}, big-endian" if swapped in _VERSIONS else str(version)
        raise cursor.unsupported("version", f"is {found}; 2 and 3, little-endian, are read")
    num_tensors = cursor.uint64("tensor count")
    num_fields = cursor.uint64("metadata count")
    # A field is at least key length 8, type 4, value 1; a tensor name length 8, number of
    # dimensions 4, one dimension 8, type 4, offset 8.
    cursor.check_room("metadata count", num_fields, 13)
    cursor.check_room("tensor count", num_tensors, 32)
    for field, count in {"tensor count": num_tensors, "metadata count": num_fields}.items():
        if count > _MAX_COUNT:
            raise cursor.unsupported(field, f"is {count}; up to {_MAX_COUNT} are read")
    return num_tensors, num_fields


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(count):
        key = cursor.string(f"key of metadata field {index}")
        if len(key) > _MAX_KEY_CHARACTERS:
            raise cursor.error(f"key of metadata field {index}", f"has {len(key)} characters")
        if key in metadata:
            raise cursor.error(key, "is there twice")
        metadata[key] = _read_value(cursor, key, cursor.uint32(key))
    return metadata


def _read_value(cursor: _Cursor, key: str, kind: int) -> object:
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind in _SCALAR_CODES:
        return cursor.scalars(key, _SCALAR_CODES[kind])[0]
    raise cursor.error(key, f"has value type {kind}, which GGUF does not know")


def _read_array(cursor: _Cursor, key: str) -> tuple[object, ...]:
    kind = cursor.uint32(key)
    count = cursor.uint64(key)
    if kind == _ARRAY:
        raise cursor.error(key, "is an array of arrays, which no model needs")
    if kind != _STRING and kind not in _SCALAR_CODES:
        raise cursor.error(key, f"is an array of value type {kind}, which GGUF does not know")
    code = _SCALAR_CODES.get(kind, "Q")  # of a string, its length
    cursor.check_room(key, count, struct.calcsize(f"<{code}"))
    cursor.num_items += count
    if cursor.num_items > _MAX_ITEMS:
        raise cursor.unsupported(
            key, f"has {count} items; {_MAX_ITEMS} in all arrays together are read"
        )
    if kind != _STRING:
        return cursor.scalars(key, code, count)
    return tuple(cursor.string(key) for _ in range(count))


def _read_tensors(
    cursor: _Cursor, count: int, metadata: Mapping[str, object]
) -> dict[str, TensorInfo]:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error("general.alignment", f"is {alignment!r:.80}, not a power of two")
    headers = [_read_tensor_header(cursor, index) for index in range(count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    end = 0
    for header in sorted(headers, key=lambda header: header.offset):
        field = f"tensor {header.name!r:.80}"
        if header.name in tensors:
            raise cursor.error(field, "is there twice")
        if header.offset % alignment:
            raise cursor.error(field, f"offset {header.offset} is no multiple of {alignment}")
        if header.offset < end:
            raise cursor.error(field, f"at offset {header.offset} overlaps the tensor before it")
        end = header.offset + header.num_bytes
        if data_start + end > cursor.position + cursor.remaining:
            raise cursor.error(
                field,
                f"ends at byte {data_start + end}, past the end of the file "
                f"({cursor.position + cursor.remaining} bytes): it is truncated or damaged",
            )
        data = cursor.view(data_start + header.offset, header.num_bytes)
        data = data.reshape(*header.shape[:-1], -1)
        tensors[header.name] = TensorInfo(header.name, header.shape, header.type, data)
    return {header.name: tensors[header.name] for header in headers}


@dataclass(frozen=True, slots=True)
class _TensorHeader:
    name: str
    shape: tuple[int, ...]
    type: str
    num_bytes: int
    offset: int
    """In bytes, from the start of the data section."""


def _read_tensor_header(cursor: _Cursor, index: int) -> _TensorHeader:
    name = cursor.string(f"name of tensor {index}")
    field = f"tensor {name!r:.80}"
    num_dims = cursor.uint32(field)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.error(field, f"has {num_dims} dimensions; 1 to {_MAX_DIMS} are possible")
    # The file has the fastest-running dimension first, NumPy has it last.
    shape = tuple(reversed([cursor.uint64(field) for _ in range(num_dims)]))
    number = cursor.uint32(field)
    offset = cursor.uint64(field)
    if number not in _TYPES:
        raise cursor.unsupported(field, _type_problem(number))
    kind, block_size, block_bytes = _TYPES[number]
    if 0 in shape:
        raise cursor.error(field, f"has a dimension of 0 (shape {list(shape)})")
    if shape[-1] % block_size:
        raise cursor.error(
            field,
            f"has rows of {shape[-1]} elements, no multiple of {kind}'s block of {block_size}",
        )
    num_bytes = shape[-1] // block_size * block_bytes
    for dim in shape[:-1]:
        num_bytes *= dim
    return _TensorHeader(name, shape, kind, num_bytes, offset)


def _type_problem(kind: str | int) -> str:
    return f"has type {kind}; those that work: {', '.join(SUPPORTED_TYPES)}"
