"""JSON files of a model's directory, read with a bound."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headway.errors import ModelError, UnsupportedModel

__all__ = ["read_json", "read_text"]

_MAX_BYTES = 4 << 20
"""The largest of those read here, Gemma 3's `tokenizer_config.json`, has a megabyte."""


def read_text(path: Path) -> str:
    """Raises `ModelError` when it cannot be read, is no UTF-8 or is far too large."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise UnsupportedModel(f"{path}: is larger than {_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: is not UTF-8 (byte {error.start})") from error


def read_json(path: Path) -> dict[str, object]:
    """The object that the file holds; raises as `read_text`, and for anything else in it."""
    try:
        return msgspec.json.decode(read_text(path), type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{path}: is not a JSON object: {error}") from error
