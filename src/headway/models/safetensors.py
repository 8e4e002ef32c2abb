"""A bounded reader of safetensors files, and of several that one index binds together.

The layout is that of https://huggingface.co/docs/safetensors: the header's length in eight
bytes, the header in JSON, the tensors' bytes without a gap. Every length and offset is
compared with the file's size before anything is allocated for it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from headway.errors import ModelError, UnsupportedModel
from headway.models.fields import shown
from headway.models.json_file import read_json
from headway.models.tensors import TensorInfo, forget_pages

__all__ = ["INDEX_NAME", "SINGLE_NAME", "SafetensorsFile", "ShardedSafetensors"]

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_MAX_HEADER_BYTES = 16 << 20
_MAX_TENSORS = 1 << 16
_MAX_DIMS = 8
_MAX_NAME_CHARACTERS = 255  # of a file
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_NUMBERS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]
    """Begin and end, in bytes from the header's end."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A safetensors file, mapped into memory for as long as this or a tensor of it is held."""

    path: Path
    size_bytes: int
    tensors: Mapping[str, TensorInfo]
    _mapping: mmap.mmap

    @classmethod
    def open(cls, path: Path | str) -> SafetensorsFile:
        """Reads the tensors' descriptions; their bytes stay on disk.

        Raises:
            ModelError: the file cannot be read or is not a well-formed safetensors file.
            UnsupportedModel: a tensor is of a type, or the header of a size, not read here.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size < 8:
                    raise ModelError(f"{path}: {size} bytes are no safetensors file")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
        try:
            return cls(path, size, MappingProxyType(_read_tensors(data)), data)
        except ModelError as error:
            raise type(error)(f"{path}: {error}") from error

    def load(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """As `TensorFile.load`."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: there is no tensor {name!r:.80}")
        data = info.data.view(_NUMBERS[info.type]).reshape(info.shape)
        if rows is not None:
            data = data[rows]
        values: npt.NDArray[np.float32]
        if info.type == "BF16":  # the upper half of a float32
            wide = data.astype(np.uint32)
            wide <<= 16
            values = wide.view(np.float32)
        else:
            values = data.astype(np.float32)
        forget_pages(self._mapping)
        return values


@dataclass(frozen=True, slots=True)
class ShardedSafetensors:
    """The files of an index, as one."""

    size_bytes: int
    tensors: Mapping[str, TensorInfo]
    _shards: Mapping[str, SafetensorsFile]
    """By tensor name."""

    @classmethod
    def open(cls, index: Path) -> ShardedSafetensors:
        """Opens every file that the index names; they lie beside it.

        Raises as `SafetensorsFile.open` does, and `ModelError` for an index that is not well
        formed or does not say what the files hold.
        """
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: weight_map: must be an object with tensors' names")
        for name, file_name in weight_map.items():
            if not _is_shard(file_name):
                raise ModelError(
                    f"{index}: weight_map: {name!r:.80} is in {shown(file_name)}, which is no name "
                    "of a safetensors file beside the index"
                )
        files = {
            file_name: SafetensorsFile.open(index.parent / file_name)
            for file_name in dict.fromkeys(weight_map.values())
        }
        shards = {name: files[file_name] for name, file_name in weight_map.items()}
        for name, shard in shards.items():
            if name not in shard.tensors:
                raise ModelError(
                    f"{shard.path}: has no tensor {name!r:.80}, which {index} puts there"
                )
        for shard in files.values():
            for name in shard.tensors:
                if shards.get(name) is not shard:
                    raise ModelError(
                        f"{shard.path}: tensor {name!r:.80}: {index} does not put it here"
                    )
        return cls(
            sum(shard.size_bytes for shard in files.values()),
            MappingProxyType({name: shard.tensors[name] for name, shard in shards.items()}),
            MappingProxyType(shards),
        )

    def load(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """As `TensorFile.load`."""
        return self._shards[name].load(name, rows)


def _is_shard(name: object) -> bool:
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARACTERS:
        return False
    return name.endswith(".safetensors") and Path(name).name == name


def _read_tensors(data: mmap.mmap) -> dict[str, TensorInfo]:
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > len(data) - 8:
        raise ModelError(
            f"header: {header_bytes} bytes are announced and {len(data) - 8} are left: the file "
            "is truncated, damaged or no safetensors file"
        )
    if header_bytes > _MAX_HEADER_BYTES:
        raise UnsupportedModel(
            f"header: is of {header_bytes} bytes; up to {_MAX_HEADER_BYTES} are read"
        )
    start = 8 + header_bytes
    entries = _read_entries(data[8:start])
    end = 0
    # In the order of their bytes, which may not overlap nor leave a gap: so a name that is
    # there twice, of which JSON keeps the last, is noticed too.
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, next_end = entry.data_offsets
        if begin != end:
            raise ModelError(
                f"tensor {name!r:.80}: begins at offset {begin}, and the one before it ends "
                f"at {end}"
            )
        end = next_end
    if start + end != len(data):
        raise ModelError(
            f"the tensors end at byte {start + end} and the file at {len(data)}: it is truncated "
            "or damaged"
        )
    return {
        name: TensorInfo(
            name,
            tuple(entry.shape),
            entry.dtype,
            np.frombuffer(
                data,
                np.uint8,
                entry.data_offsets[1] - entry.data_offsets[0],
                start + entry.data_offsets[0],
            ),
        )
        for name, entry in entries.items()
    }


def _read_entries(header: bytes) -> dict[str, _Entry]:
    """Raises unless each is sound on its own."""
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"header: is not a JSON object: {error}") from error
    raw.pop("__metadata__", None)
    if len(raw) > _MAX_TENSORS:
        raise UnsupportedModel(f"header: names {len(raw)} tensors; up to {_MAX_TENSORS} are read")
    entries: dict[str, _Entry] = {}
    for name, text in raw.items():
        try:
            entry = msgspec.json.decode(text, type=_Entry)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ModelError(f"tensor {name!r:.80}: {error!s:.200}") from error
        _check(name, entry)
        entries[name] = entry
    return entries


def _check(name: str, entry: _Entry) -> None:
    if entry.dtype not in _ITEM_BYTES:
        raise UnsupportedModel(
            f"tensor {name!r:.80}: has type {entry.dtype!r:.20}; those that work: "
            f"{', '.join(_ITEM_BYTES)}"
        )
    if len(entry.shape) > _MAX_DIMS or any(not 1 <= dim < 2**63 for dim in entry.shape):
        raise ModelError(
            f"tensor {name!r:.80}: a shape is up to {_MAX_DIMS} whole numbers from 1, not "
            f"{str(entry.shape)!s:.80}"
        )
    begin, end = entry.data_offsets
    needed = math.prod(entry.shape) * _ITEM_BYTES[entry.dtype]
    if begin < 0 or end - begin != needed:
        raise ModelError(
            f"tensor {name!r:.80}: shape {entry.shape} in {entry.dtype} needs {needed} bytes, and "
            f"its offsets are {begin} to {end}"
        )
