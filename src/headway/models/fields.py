"""Typed look-ups among the fields of a file: a GGUF file's metadata, or a JSON object."""

from __future__ import annotations

from collections.abc import Mapping

from headway.errors import ModelError, UnsupportedModel

__all__ = ["LARGEST_COUNT", "Fields", "shown"]

LARGEST_COUNT = 2**63 - 1
_LONGEST_SHOWN = 80


class Fields:
    """The fields whose names begin with a prefix, by the rest of their names.

    A field that is null (JSON) is as one that is not there. All look-ups raise `ModelError`
    naming the field when it is of another kind, or is missing and no default is given.
    """

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def error(self, name: str, problem: str) -> ModelError:
        return ModelError(f"{self._prefix}{name}: {problem}")

    def unsupported(self, name: str, problem: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._prefix}{name}: {problem}")

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> object:
        """The field as it stands; None when it is not there."""
        return self._values.get(self._prefix + name)

    def names(self) -> tuple[str, ...]:
        """Of all fields with the prefix, without it."""
        start = len(self._prefix)
        return tuple(name[start:] for name in self._values if name.startswith(self._prefix))

    def count(self, name: str, default: int | None = None, *, at_least: int = 1) -> int:
        """A whole number ≥ `at_least`, below 2^63."""
        value = self._required(name, default)
        if isinstance(value, (tuple, list)):
            raise self.unsupported(name, "has a value per layer; one for all layers is needed")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be a whole number, not {shown(value)}")
        if not at_least <= value <= LARGEST_COUNT:
            raise self.error(name, f"must be a whole number from {at_least}, not {shown(value)}")
        return value

    def number(self, name: str, default: float | None = None, *, at_least: float = 0.0) -> float:
        """A number ≥ `at_least`, above 0 whatever that is, and below 2^63."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, f"must be a number, not {shown(value)}")
        if not 0 < value <= LARGEST_COUNT or value < at_least:
            wanted = f"from {at_least:g}" if at_least else "above 0"
            raise self.error(name, f"must be a finite number {wanted}, not {shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._required(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {shown(value)}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, not {shown(value)}")
        return value

    def section(self, name: str) -> Fields:
        """The fields of a JSON object, empty when it is not there; errors name `name.field`."""
        value = self.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {shown(value)}")
        prefix = f"{self._prefix}{name}."
        return Fields({prefix + key: item for key, item in value.items()}, prefix)

    def _required(self, name: str, default: object) -> object:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "is missing")
        return value


def shown(value: object) -> str:
    """A value for an error message, never long."""
    if value is None:
        return "missing"
    if isinstance(value, (tuple, list)):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
