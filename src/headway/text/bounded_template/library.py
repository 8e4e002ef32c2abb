"""The filters, tests, functions and methods that a chat template has, each bounded.

They do what Jinja2's and Python's of that name do, after charging the `BoundedContext` that
they get first. What is not here does not exist for a template: what no chat template needs
(`center`, `wordwrap`, `lipsum`, …) and what is not the same twice (`random`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateRuntimeError, pass_context
from jinja2 import filters as jinja
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace
from markupsafe import escape

from headway.text.bounded_template import strings
from headway.text.bounded_template.allowance import (
    CALL,
    STEP,
    BoundedContext,
    checked_key,
    item_cost,
    num_bytes,
)
from headway.text.bounded_template.operators import COMPARISONS, arithmetic, bounded_number

__all__ = ["FILTERS", "METHODS", "TESTS", "Function", "functions"]

_MAX_DIGITS = 20
_MAX_FORMAT_CHARACTERS = 100
_SORTING = 20  # comparisons of one item among a million


class Function:
    """What a template may call: a function, or a method with its object."""

    __slots__ = ("_bound", "_function")

    def __init__(self, function: Callable[..., object], *bound: object) -> None:
        self._function = function
        self._bound = bound

    def __call__(self, context: BoundedContext, /, *args: object, **kwargs: object) -> object:
        context.spend(CALL)
        return self._function(context, *self._bound, *args, **kwargs)


# Collections


def _drawing(function: Callable[..., Any], factor: int = 0) -> Callable[..., Any]:
    """Of items that are taken one by one, and each looked at whole, `factor` times."""

    @pass_context
    def bounded(context: BoundedContext, value: Any, /, *args: object, **kwargs: object) -> object:
        def items() -> Iterator[Any]:
            for item in context.draw(value, item_cost(*args, *kwargs.values())):
                if factor:
                    context.weigh(item, factor)
                yield item

        return function(context, items() if value else value, *args, **kwargs)

    return bounded


def _with_environment(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda context, *args, **kwargs: function(context.environment, *args, **kwargs)


@pass_context
def _reverse(context: BoundedContext, value: Any) -> object:
    if isinstance(value, str):
        context.spend(num_bytes(value))
        return jinja.do_reverse(value)
    return context.draw(jinja.do_reverse(value))


@pass_context
def _items(context: BoundedContext, value: Any) -> Iterator[tuple[Any, Any]]:
    return context.draw(jinja.do_items(value))


def _batch(
    context: BoundedContext, items: Iterable[Any], linecount: int, fill_with: object = None
) -> Iterator[list[Any]]:
    if fill_with is not None:
        context.spend(STEP * linecount)
    return jinja.do_batch(items, linecount, fill_with)


@pass_context
def _dictsort(
    context: BoundedContext, value: Mapping[Any, Any], /, *args: Any, **kwargs: Any
) -> object:
    context.weigh(value, _SORTING)
    return jinja.do_dictsort(value, *args, **kwargs)


def _unique(_context: BoundedContext, items: Iterable[Any]) -> list[Any]:
    """Of strings and numbers, without regard to case; the first of equals."""
    seen: dict[object, object] = {}
    for item in items:
        key = checked_key(item)
        seen.setdefault(key.lower() if isinstance(key, str) else key, item)
    return list(seen.values())


def _in_list(method: Callable[[dict[Any, Any]], Iterable[Any]]) -> Callable[..., list[Any]]:
    return lambda context, table: list(context.draw(method(table)))


def _get(
    _context: BoundedContext, table: dict[Any, Any], key: object, default: object = None
) -> object:
    return table.get(checked_key(key), default)


# Numbers


@pass_context
def _integer(context: BoundedContext, value: object, default: int = 0, base: int = 10) -> object:
    context.weigh(value)
    return bounded_number(jinja.do_int(value, default, base))


def _sum(context: BoundedContext, items: Iterable[Any], attribute: str | None = None) -> object:
    """Of numbers: it has no `start`, which might be a list."""
    return bounded_number(jinja.do_sum(context.environment, items, attribute))


def _round(value: Any, precision: int = 0, method: Any = "common") -> object:
    if abs(precision) > _MAX_DIGITS:
        raise TemplateRuntimeError(f"round: the precision is beyond {_MAX_DIGITS} digits")
    return bounded_number(jinja.do_round(cast(Any, bounded_number(value)), precision, method))


@pass_context
def _float(context: BoundedContext, value: object, default: float = 0.0) -> float:
    context.weigh(value)
    return jinja.do_float(value, default)


def _remainder_is(wanted: int) -> Callable[..., bool]:
    remainder = arithmetic("%")

    @pass_context
    def test(context: BoundedContext, value: object, divisor: object = 2) -> bool:
        return bool(remainder(context, value, divisor) == wanted)

    return test


# Functions


def _range(_context: BoundedContext, *args: int) -> range:
    return range(*args)


def _namespace(_context: BoundedContext, /, **attributes: object) -> Namespace:
    return _Namespace(**attributes)


class _Namespace(Namespace):
    """One that prints as itself: its attributes may hold it, or more than fits a page."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _raise_exception(context: BoundedContext, message: object) -> NoReturn:
    raise TemplateRuntimeError(context.text(message))


def functions(now: Callable[[], datetime]) -> dict[str, Function]:
    """The functions that a template may call; `now` is the local time."""

    def strftime_now(context: BoundedContext, format: str) -> str:
        context.spend(8 * CALL)
        if len(format) > _MAX_FORMAT_CHARACTERS:
            raise TemplateRuntimeError(
                f"strftime_now: the format has more than {_MAX_FORMAT_CHARACTERS} characters"
            )
        return now().strftime(format)

    return {
        "namespace": Function(_namespace),
        "raise_exception": Function(_raise_exception),
        "range": Function(_range),
        "strftime_now": Function(strftime_now),
    }


FILTERS: dict[str, Callable[..., object]] = {
    "abs": abs,
    "batch": _drawing(_batch),
    "capitalize": strings.scanning(str.capitalize),
    "count": len,
    "d": jinja.do_default,
    "default": jinja.do_default,
    "dictsort": _dictsort,
    "e": strings.scanning(lambda text: str(escape(text)), 6),
    "escape": strings.scanning(lambda text: str(escape(text)), 6),
    "first": pass_context(_with_environment(jinja.do_first)),
    "float": _float,
    "indent": strings.indent,
    "int": _integer,
    "items": _items,
    "join": strings.join,
    "last": pass_context(_with_environment(jinja.do_last)),
    "length": len,
    "list": _drawing(lambda _, items: list(items)),
    "lower": strings.scanning(str.lower),
    "map": _drawing(jinja.do_map),
    "max": _drawing(_with_environment(jinja.do_max), 1),
    "min": _drawing(_with_environment(jinja.do_min), 1),
    "reject": _drawing(jinja.do_reject),
    "rejectattr": _drawing(jinja.do_rejectattr),
    "replace": strings.replace,
    "reverse": _reverse,
    "round": _round,
    "safe": strings.scanning(str),  # escaping is off: nothing is to be marked
    "select": _drawing(jinja.do_select),
    "selectattr": _drawing(jinja.do_selectattr),
    "sort": _drawing(_with_environment(jinja.do_sort), _SORTING),
    "sum": _drawing(_sum),
    "string": strings.scanning(str),
    "title": strings.scanning(jinja.do_title, 16),
    "tojson": strings.to_json,
    "trim": strings.scanning(str.strip),
    "unique": _drawing(_unique),
    "upper": strings.scanning(str.upper),
    "wordcount": strings.scanning(jinja.do_wordcount, 32),
}

TESTS: dict[str, Callable[..., object]] = {
    **{
        name: cast(Callable[..., object], JINJA_TESTS[name])
        for name in (
            *("boolean", "callable", "defined", "false", "float", "integer", "iterable"),
            *("mapping", "none", "number", "sameas", "sequence", "string", "true", "undefined"),
        )
    },
    **{
        alias: COMPARISONS[name]
        for name, aliases in {
            "eq": ("eq", "equalto", "=="),
            "ne": ("ne", "!="),
            "gt": ("gt", "greaterthan", ">"),
            "gteq": ("ge", ">="),
            "lt": ("lt", "lessthan", "<"),
            "lteq": ("le", "<="),
            "in": ("in",),
        }.items()
        for alias in aliases
    },
    "divisibleby": _remainder_is(0),
    "even": _remainder_is(0),
    "odd": _remainder_is(1),
}

METHODS: dict[type, dict[str, Callable[..., object]]] = {
    str: {
        **{
            name: strings.scanning(getattr(str, name))
            for name in (
                *("capitalize", "count", "find", "index", "isalnum", "isalpha", "isdigit"),
                *("islower", "isnumeric", "isspace", "isupper", "lower", "lstrip", "rfind"),
                *("removeprefix", "removesuffix", "rstrip", "strip", "title", "upper"),
            )
        },
        "endswith": strings.at_an_end(str.endswith),
        "format": strings.format_text,
        "join": lambda context, text, items: strings.join(context, items, text),
        "replace": strings.replace,
        "rsplit": strings.splitting(str.rsplit),
        "split": strings.splitting(str.split),
        "splitlines": strings.splitlines,
        "startswith": strings.at_an_end(str.startswith),
    },
    dict: {
        "get": _get,
        "items": _in_list(dict.items),
        "keys": _in_list(dict.keys),
        "values": _in_list(dict.values),
    },
}
"""Of a type: what its methods do. Other types have none."""
