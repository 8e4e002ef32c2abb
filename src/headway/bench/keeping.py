"""What is kept of a trial in a file, from which reports are made again without measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headway.bench.trials import Sample, Trial
from headway.errors import InvalidConfig

__all__ = ["read_kept", "slim", "write_output"]


T = TypeVar("T")


def read_kept(path: Path, kind: type[T], what: str, *, option: str = "from") -> T:
    """Raises InvalidConfig, naming the option, for a file that holds no `kind`, which is called
    `what`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InvalidConfig(option, f"{path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidConfig(option, f"{path} holds no {what}: {error}") from None


def write_output(option: str, path: Path, text: str) -> None:
    """Raises InvalidConfig, naming the option, where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(option, f"{path}: {error.strerror or error}") from None


def slim(trial: Trial, names: Sequence[str]) -> Trial:
    """By request only the details of these names, and these and the samples to five significant
    digits. The figures stay as they are: a table made again shows the same."""
    return replace(
        trial,
        details={name: _rounded(trial.details[name]) for name in names},
        samples=[msgspec.convert(_rounded(msgspec.to_builtins(s)), Sample) for s in trial.samples],
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
