"""null for a field that nobody knows: clients send back what another server gave them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from msgspec import inspect

__all__ = ["without_unknown_nulls"]


def without_unknown_nulls(value: Any, kind: object) -> Any:
    """JSON's `value` without the members that are null and that no struct has which `kind` has in
    their place; where a tag says which of several it is, without those that this one does not have.
    What is free there (a schema, for one) is left as it is.
    """
    return _pruned(value, [_info(kind)])


@cache
def _info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _pruned(value: Any, places: Iterable[inspect.Type]) -> Any:
    """`places`: what the value may be. It recurses as deep as the type, however deep the value."""
    members = [member for place in places for member in _members(place)]
    if isinstance(value, list):
        items = [member.item_type for member in members if isinstance(member, inspect.ListType)]
        return [_pruned(item, items) for item in value] if items else value
    structs = [member for member in members if isinstance(member, inspect.StructType)]
    if not structs or not isinstance(value, dict):
        return value
    said = [each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag]
    fields: dict[str, list[inspect.Type]] = {}
    for struct in said or structs:
        if struct.tag_field is not None:
            fields.setdefault(struct.tag_field, [])
        for field in struct.fields:
            fields.setdefault(field.encode_name, []).append(field.type)
    return {
        name: _pruned(item, fields.get(name, ()))
        for name, item in value.items()
        if item is not None or name in fields
    }


def _members(place: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(place, inspect.UnionType):
        yield from place.types
    else:
        yield place
