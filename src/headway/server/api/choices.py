"""What a body's field may be, read off the types that the body is decoded into."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from msgspec import inspect

__all__ = ["choices"]

_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")


def choices(body: object, path: str) -> list[str]:
    """The strings that the field at `path` may be, where only some are allowed; else none.

    `body` is the type that was decoded into; `path` is the decoder's (`messages[0].role`), without
    its `$.` Where a union leaves open which of its structs it was, those of all are given.
    """
    places: Iterable[inspect.Type] = [_info(body)]
    for step in _STEP.findall(path):
        places = [inner for place in places for inner in _within(place, step)]
    return [value for place in places for value in _strings(place)]


@cache
def _info(body: object) -> inspect.Type:
    return inspect.type_info(body)


def _within(place: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match place:
        case inspect.UnionType():
            for member in place.types:
                yield from _within(member, step)
        case inspect.StructType():
            if place.tag_field == step:
                yield inspect.LiteralType((str(place.tag),))
            yield from (field.type for field in place.fields if field.encode_name == step)
        case inspect.ListType() if step.startswith("["):
            yield place.item_type


def _strings(place: inspect.Type) -> Iterator[str]:
    match place:
        case inspect.UnionType():
            for member in place.types:
                yield from _strings(member)
        case inspect.LiteralType():
            yield from (value for value in place.values if isinstance(value, str))
