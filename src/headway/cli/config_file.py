"""Options from a YAML file (`--config`): the names that the command line has, `-` or `_`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

import yaml

from headway.errors import InvalidConfig

__all__ = ["read_config"]


def read_config(path: str, known: Iterable[Field[Any]]) -> dict[str, Any]:
    """The file's options by their fields' names, with values of the fields' types.

    Raises InvalidConfig, which names the file and the option, for what is no option, is given
    twice, or has a value of the wrong kind.
    """
    by_name = {item.name: item for item in known}
    options: dict[str, Any] = {}
    for key, value in _load(path).items():
        name = str(key).replace("-", "_")
        if name not in by_name:
            raise InvalidConfig("config", f"{path}: {key} is no option of this command")
        if name in options:
            raise InvalidConfig("config", f"{path}: {key} is given twice")
        try:
            options[name] = _converted(by_name[name], value)
        except ValueError as error:
            shown = f", not {value!r}" if by_name[name].repr else ""  # a key is not shown
            raise InvalidConfig("config", f"{path}: {key}: {error}{shown}") from None
    return options


def _load(path: str) -> Mapping[object, object]:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig("config", f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig("config", f"{path}: is not UTF-8") from None
    try:
        root, content = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except Exception as error:  # not YAML's own alone: `!!bool maybe` is a KeyError
        # The error's own words may show what the line holds, and that may be a key.
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", at line {mark.line + 1}, column {mark.column + 1}"
        hint = "a text with special characters needs quotes"
        raise InvalidConfig("config", f"{path}: is not YAML{place}; {hint}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidConfig("config", f"{path}: must hold options, as `port: 8000`")
    keys = Counter(key.value for key, _ in root.value)
    for key, count in keys.items():
        if count > 1:  # of which YAML's parser keeps the last
            raise InvalidConfig("config", f"{path}: {key} is given twice")
    return content


_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "bool": ("true or false", (bool,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("a text", (str, int, float)),
    "tuple[str,": ("a text or a list of them", (str, list)),
}
"""By the first word of a field's type: what is wanted, and what YAML makes of that."""


def _converted(item: Field[Any], value: object) -> Any:
    """Raises ValueError, which says what would do."""
    if value is None and item.default is None:
        return None
    choices = item.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    kind = str(item.type).split(" ", maxsplit=1)[0]
    wanted, types = _KINDS[kind]
    is_right = isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))
    if not is_right or (isinstance(value, list) and not all(isinstance(v, str) for v in value)):
        raise ValueError(f"must be {wanted}")
    if kind == "tuple[str,":
        return tuple(value) if isinstance(value, list) else (value,)
    return {"float": float, "str": str}[kind](value) if kind in ("float", "str") else value
