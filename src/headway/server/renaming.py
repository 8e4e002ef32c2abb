"""Errors that name a field as its own API calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headway.errors import InvalidRequest

__all__ = ["name_in_body", "renamed", "renaming"]


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The same with the body's own name for the field.

    `names`: a field's path in the engine's terms, or the beginning of it → the body's; the longest
    that fits counts. What is not among them is called the same.
    """
    message = str(error).removeprefix(f"{error.field}: ")
    return type(error)(name_in_body(error.field, names), message)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Renames the `InvalidRequest` that is raised within."""
    try:
        yield
    except InvalidRequest as error:
        raise renamed(error, names) from error


def name_in_body(path: str, names: Mapping[str, str]) -> str:
    """Tries ever shorter beginnings, each a whole number of steps."""
    ends = [match.start() for match in re.finditer(r"[.\[]", path)]
    for end in (len(path), *reversed(ends)):
        if path[:end] in names:
            return names[path[:end]] + path[end:]
    return path
