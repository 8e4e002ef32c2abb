"""What one rendering may use up, and how it is charged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import TemplateRuntimeError, Undefined
from jinja2.runtime import Context

__all__ = [
    "ALLOWANCE",
    "CALL",
    "COLLECTIONS",
    "KEYS",
    "NODE",
    "STEP",
    "BoundedContext",
    "checked_key",
    "item_cost",
    "num_bytes",
    "num_bytes_joined",
]

ALLOWANCE = 64 * 2**20
"""Of one rendering, in bytes made: some 100 MB of memory at the most, and about a second."""
STEP = 64
"""Charged for an item, or a value of no particular size: a million fit."""
CALL = 128
"""Charged for a call."""
NODE = 24
"""Charged for each node of the syntax tree whenever the body that holds it is run."""
COLLECTIONS = (list, tuple, dict)
KEYS = (str, int, float, type(None), Undefined)

_MAX_DEPTH = 64
_MAX_KEY_CHARACTERS = 1000
_PRINTED = 8  # a container as text is no longer than 8 times its values and STEPs


class BoundedContext(Context):
    """The variables of one rendering, and what is left of its allowance.

    Every operation whose cost depends on its values is charged before it is done; the methods
    raise `TemplateRuntimeError` when too little is left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = ALLOWANCE

    def spend(self, amount: int) -> None:
        """Charges `amount` bytes."""
        if not 0 <= amount <= self._left:  # so that a NaN ends it, too
            raise TemplateRuntimeError(
                f"rendering takes more than its {ALLOWANCE // 2**20} MiB of work: "
                "the conversation is too long, or the template runs wild"
            )
        self._left -= amount

    def weigh(self, value: object, factor: int = 1, depth: int = _MAX_DEPTH) -> None:
        """Charges `factor` times what is reached from `value`, as often as it is reached.

        So whatever looks at all of it (prints, compares, sorts) takes no longer than that.
        """
        self.spend(factor * STEP)
        if isinstance(value, str):
            self.spend(factor * num_bytes(value))
        elif isinstance(value, COLLECTIONS):
            if not depth:
                raise TemplateRuntimeError(f"a value is nested deeper than {_MAX_DEPTH}")
            for item in value:
                self.weigh(item, factor, depth - 1)
            if isinstance(value, dict):
                for item in value.values():
                    self.weigh(item, factor, depth - 1)

    def text(self, value: object) -> str:
        """`value` as a string. Charges nothing for a string, which was charged when made."""
        if isinstance(value, str):
            return value
        self.weigh(value, _PRINTED)
        return str(value)

    def draw(self, items: Iterable[Any], cost: int = STEP) -> Iterator[Any]:
        """The items, each charged before it is taken."""
        for item in items:
            self.spend(cost)
            yield item

    def derived(self, locals: Mapping[str, Any] | None = None) -> BoundedContext:
        """Never needed by what `BoundedEnvironment` compiles; it would be a new allowance."""
        raise NotImplementedError


def num_bytes(text: str) -> int:
    """What a string occupies, at the most."""
    return len(text) if text.isascii() else 4 * len(text)


def num_bytes_joined(length: int, texts: Iterable[str]) -> int:
    """What `length` characters taken from `texts` occupy: a wide one widens all."""
    return length if all(map(str.isascii, texts)) else 4 * length


def item_cost(*names: object) -> int:
    """Of an item in which attributes `names` are looked up."""
    return STEP + 16 * sum(len(name) for name in names if isinstance(name, str))


def checked_key(value: object) -> object:
    """`value` if it may be a key: such as hash and compare at once, and do not collide."""
    if not isinstance(value, KEYS):
        raise TemplateRuntimeError(f"a {type(value).__name__} cannot be a key")
    if isinstance(value, str) and len(value) > _MAX_KEY_CHARACTERS:
        raise TemplateRuntimeError(f"a key is longer than {_MAX_KEY_CHARACTERS} characters")
    return value
