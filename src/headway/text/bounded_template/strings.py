"""Text made of text: what the filters and methods of strings do, after it was charged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import TemplateRuntimeError, pass_context
from jinja2 import filters as jinja
from jinja2.sandbox import SandboxedFormatter

from headway.text.bounded_template.allowance import (
    STEP,
    BoundedContext,
    item_cost,
    num_bytes,
    num_bytes_joined,
)

__all__ = [
    "at_an_end",
    "format_text",
    "indent",
    "join",
    "replace",
    "scanning",
    "splitlines",
    "splitting",
    "to_json",
]

_MAX_INDENT = 8
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _scan_cost(text: str, *parts: object) -> int:
    """Of looking for `parts` in all of `text`, or of a copy of it."""
    factor = 1 + sum(len(part) for part in parts if isinstance(part, str)) // 16
    return STEP + factor * num_bytes(text)


def scanning(function: Callable[..., object], factor: int = 1) -> Callable[..., object]:
    """Of a text; what it makes is no longer than `factor` times that."""

    @pass_context
    def bounded(
        context: BoundedContext, value: object, /, *args: object, **kwargs: object
    ) -> object:
        text = context.text(value)
        context.spend(factor * _scan_cost(text, *args, *kwargs.values()))
        return function(text, *args, **kwargs)

    return bounded


def at_an_end(function: Callable[..., bool]) -> Callable[..., bool]:
    def bounded(context: BoundedContext, text: str, *args: object) -> bool:
        context.weigh(args)
        return function(text, *args)

    return bounded


def splitting(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def bounded(
        context: BoundedContext, text: str, sep: str | None = None, maxsplit: int = -1
    ) -> list[str]:
        context.spend(_scan_cost(text, sep))
        pieces = len(text) // 2 if sep is None else text.count(sep)
        context.spend(STEP * (pieces if maxsplit < 0 else min(pieces, maxsplit)))
        return function(text, sep, maxsplit)

    return bounded


def splitlines(context: BoundedContext, text: str, keepends: bool = False) -> list[str]:
    context.spend(_scan_cost(text) + STEP * _num_lines(text))
    return text.splitlines(keepends)


def _num_lines(text: str) -> int:
    return 1 + sum(map(text.count, _LINE_ENDS))


@pass_context
def replace(
    context: BoundedContext, value: object, old: object, new: object, count: int | None = None
) -> str:
    text, old, new = context.text(value), context.text(old), context.text(new)
    context.spend(_scan_cost(text, old))
    found = text.count(old)
    times = found if count is None or count < 0 else min(count, found)
    context.spend(num_bytes_joined(len(text) + times * len(new), (text, new)))
    return text.replace(old, new, times)


@pass_context
def join(
    context: BoundedContext, value: Iterable[Any], d: object = "", attribute: str | None = None
) -> str:
    items: Iterable[Any] = context.draw(value, item_cost(attribute))
    if attribute is not None:
        items = map(jinja.make_attrgetter(context.environment, attribute), items)
    parts = [context.text(item) for item in items]
    between = context.text(d)
    length = sum(map(len, parts)) + len(between) * len(parts)
    context.spend(num_bytes_joined(length, (between, *parts)))
    return between.join(parts)


@pass_context
def indent(
    context: BoundedContext,
    value: object,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> str:
    text = context.text(value)
    size = len(width) if isinstance(width, str) else max(width, 0)
    context.spend(_scan_cost(text) + _num_lines(text) * (STEP + 4 * size))
    return jinja.do_indent(text, width, first, blank)


class _Formatter(SandboxedFormatter):
    """`str.format` with fields of at most three digits' width."""

    def __init__(self, context: BoundedContext) -> None:
        super().__init__(context.environment)
        self._context = context

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        self._context.weigh(value, 8)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if re.search(r"\d{4}", format_spec):
            raise TemplateRuntimeError(f"a field of format is too wide: {format_spec[:20]}")
        self._context.weigh(value, 8)
        self._context.spend(4 * 999)
        return format(value, format_spec) if format_spec else self._context.text(value)


def format_text(context: BoundedContext, text: str, /, *args: object, **kwargs: object) -> str:
    context.spend(STEP * len(text))
    return _Formatter(context).vformat(text, args, kwargs)


@pass_context
def to_json(
    context: BoundedContext,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: Jinja2's own filter escapes for HTML, which a model would read."""
    if not (indent is None or (isinstance(indent, int) and indent <= _MAX_INDENT)):
        raise TemplateRuntimeError(f"tojson: indent must be a number up to {_MAX_INDENT}")
    if separators is not None and max(map(len, separators)) > _MAX_INDENT:
        raise TemplateRuntimeError(f"tojson: a separator has more than {_MAX_INDENT} characters")
    context.weigh(value, 8)  # an escape takes 6; an item's indent 8 * 64, which 8 * STEP covers
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
