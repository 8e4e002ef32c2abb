"""The operators of templates, each charged before it is done.

Integers have 64 bits, so that no power and no product takes long. `%` formats no text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateRuntimeError, pass_context

from headway.text.bounded_template.allowance import (
    COLLECTIONS,
    STEP,
    BoundedContext,
    checked_key,
    num_bytes,
    num_bytes_joined,
)

__all__ = ["BINARY", "COMPARISONS", "arithmetic", "bounded_number", "concatenate", "cut"]

_INTEGER_BITS = 64
_SEQUENCE = (str, list, tuple)


def bounded_number(value: object) -> object:
    """`value`, which is not an integer of more than 64 bits."""
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        raise TemplateRuntimeError(f"an integer has more than {_INTEGER_BITS} bits")
    return value


def arithmetic(symbol: str) -> Callable[[BoundedContext, Any, Any], Any]:
    """The operation of two numbers; of anything else, Python's error."""
    function = _FUNCTIONS[symbol]

    def bounded(_context: BoundedContext, left: Any, right: Any) -> Any:
        bounded_number(left)
        bounded_number(right)
        return bounded_number(function(left, right))

    return bounded


def _power(left: Any, right: Any) -> Any:
    integers = isinstance(left, int) and isinstance(right, int)
    if integers and left.bit_length() * right > _INTEGER_BITS**2:  # far more than there may be
        raise TemplateRuntimeError(f"an integer has more than {_INTEGER_BITS} bits")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        raise TemplateRuntimeError("'%' formats no text here; use '~' or format()")
    return left % right


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": _modulo,
    "**": _power,
}


def _size(value: Any, times: int = 1) -> int:
    """Bytes of `times` copies of a sequence in a row."""
    size = num_bytes(value) if isinstance(value, str) else STEP * len(value)
    return STEP + size * max(times, 0)


def _add(context: BoundedContext, left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        context.spend(STEP + num_bytes_joined(len(left) + len(right), (left, right)))
    elif isinstance(left, _SEQUENCE) and isinstance(right, _SEQUENCE):
        context.spend(_size(left) + _size(right))
    else:
        return _add_numbers(context, left, right)
    return left + right


def _multiply(context: BoundedContext, left: Any, right: Any) -> Any:
    if isinstance(left, _SEQUENCE) and isinstance(right, int):
        context.spend(_size(left, right))
    elif isinstance(right, _SEQUENCE) and isinstance(left, int):
        context.spend(_size(right, left))
    else:
        return _multiply_numbers(context, left, right)
    return left * right


_add_numbers = arithmetic("+")
_multiply_numbers = arithmetic("*")

BINARY = {symbol: arithmetic(symbol) for symbol in _FUNCTIONS} | {"+": _add, "*": _multiply}
"""Symbol → operation, for `call_binop`."""


@pass_context
def concatenate(context: BoundedContext, *values: object) -> str:
    """`a ~ b ~ …`"""
    texts = [context.text(value) for value in values]
    context.spend(STEP + num_bytes_joined(sum(map(len, texts)), texts))
    return "".join(texts)


@pass_context
def cut(context: BoundedContext, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """`value[start:stop:step]`"""
    part = slice(start, stop, step)
    if isinstance(value, _SEQUENCE):
        length = len(range(*part.indices(len(value))))
        context.spend(STEP + (4 if isinstance(value, str) else STEP) * length)
    return value[part]


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[..., bool]:
    @pass_context
    def bounded(context: BoundedContext, left: Any, right: Any) -> bool:
        if isinstance(left, str):
            if len(left) > STEP and isinstance(right, str):
                context.spend(min(len(left), len(right)))
        elif isinstance(left, COLLECTIONS):
            context.weigh(left)
        return bool(function(left, right))

    return bounded


@pass_context
def _contains(context: BoundedContext, left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        checked_key(left)
    elif isinstance(right, str) and isinstance(left, str):
        context.spend((1 + len(left) // 16) * num_bytes(right))
    else:
        if not isinstance(right, COLLECTIONS):
            right = list(context.draw(right))
        context.weigh(right)
    return left in right


@pass_context
def _lacks(context: BoundedContext, left: Any, right: Any) -> bool:
    return not _contains(context, left, right)


COMPARISONS: dict[str, Callable[..., bool]] = {
    "eq": _comparison(operator.eq),
    "ne": _comparison(operator.ne),
    "gt": _comparison(operator.gt),
    "gteq": _comparison(operator.ge),
    "lt": _comparison(operator.lt),
    "lteq": _comparison(operator.le),
    "in": _contains,
    "notin": _lacks,
}
"""By Jinja2's names of them."""
