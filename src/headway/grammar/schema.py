"""JSON schemas: what is refused before they are compiled, and how the JSON is spaced."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

__all__ = ["check_multiples", "spaced"]

_WHITESPACE = r"( |\n {0,8})?"
"""What JSON may have where it may have space: what models write, compact or indented. With any
amount of it allowed, one that has nothing to say any more goes on with it up to its limit."""

_MOST_PATTERN_CHARACTERS = 8192
"""Of all patterns together: what takes a quarter of a second at worst, and as the square of it."""
_MOST_DIGITS = 30
_MOST_STEPS = 20_000
"""Of multiples: an automaton has a state for each remainder."""
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([-+.\deE]+)')


def spaced(schema: str, *, whitespace: str | None = _WHITESPACE) -> str:
    """The same schema, with what the compiler is to know of white space.

    Args:
        schema: JSON.
        whitespace: a regular expression; None: there is none.

    Raises ValueError for what is no JSON, or no schema.
    """
    spacing: dict[str, Any] = {"whitespace_flexible": False}
    if whitespace is not None:
        spacing = {"whitespace_pattern": whitespace}
    try:
        read = json.loads(schema, parse_constant=_no_constant)
        if read is True:
            read = {}
        if not isinstance(read, dict):
            raise ValueError(f"a schema is an object, not {read!r:.80}")
        if "x-guidance" in read:
            raise ValueError("x-guidance is not supported")
        size = sum(map(len, _patterns(read))) + len(whitespace or "")
        if size > _MOST_PATTERN_CHARACTERS:
            raise ValueError(
                f"its patterns have {size:,} characters; at most {_MOST_PATTERN_CHARACTERS:,}"
            )
        return json.dumps({**read, "x-guidance": spacing})
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _patterns(schema: object) -> Iterator[str]:
    """All strings that stand where a pattern does."""
    stack = [schema]
    while stack:
        match stack.pop():
            case dict(members):
                if isinstance(pattern := members.get("pattern"), str):
                    yield pattern
                if isinstance(named := members.get("patternProperties"), dict):
                    yield from named
                stack += members.values()
            case list(items):
                stack += items


def check_multiples(grammar: str) -> None:
    """Raises ValueError where the `multipleOf` of schemas in a grammar take too many states
    together: the compiler would be about them for minutes, and cannot be interrupted."""
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), grammar)
    steps = {_fraction(match[1]) for match in _MULTIPLE.finditer(text)}
    if not steps:
        return
    scale = math.lcm(*(step.denominator for step in steps))
    together = 1
    for step in steps:
        together = math.lcm(together, int(step * scale) or 1)
        if together > _MOST_STEPS:
            raise ValueError(
                f"multipleOf: the least common multiple of all there are is over {_MOST_STEPS}"
            )


def _fraction(number: str) -> Fraction:
    exponent = number.lower().partition("e")[2].lstrip("+-")
    if len(number) > _MOST_DIGITS or int(exponent or 0) > _MOST_DIGITS:
        raise ValueError(f"multipleOf: {number:.40} has too many digits")
    return abs(Fraction(number))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
