"""What a model's chat template says of the text that the model writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import InvalidRequest
from headway.text.reasoning import ThinkMarks, marks_of
from headway.text.tools.formats import GENERIC, CallFormat, format_of

__all__ = ["NO_DIALECT", "Dialect", "dialect_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a model writes what is not plain text."""

    calls: CallFormat
    takes_tools: bool
    """The template tells the model of tools, in that format."""
    thinks: ThinkMarks | None
    """None: the model does not think before it answers."""
    has_developer: bool
    """The template has a place for messages of the role `developer`."""

    def speaking(self, calls: CallFormat) -> Dialect:
        """The same with another format of calls, which its template then cannot tell of."""
        if calls == self.calls:
            return self
        return Dialect(
            calls=calls,
            takes_tools=False,
            thinks=self.thinks,
            has_developer=self.has_developer,
        )


NO_DIALECT = Dialect(calls=GENERIC, takes_tools=False, thinks=None, has_developer=False)

_MESSAGES = [{"role": "user", "content": "Hello"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


def dialect_of(source: str, render: Callable[..., str]) -> Dialect:
    """That of a template, from its source and what it makes of tools."""
    calls = format_of(source)
    return Dialect(
        calls=calls,
        takes_tools=calls is not GENERIC and _shows_tools(render),
        thinks=marks_of(source),
        has_developer="developer" in source,
    )


def _shows_tools(render: Callable[..., Any]) -> bool:
    try:
        return "probe" in render(_MESSAGES, tools=[_TOOL])
    except InvalidRequest:
        return False
