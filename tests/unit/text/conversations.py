"""Conversations and tools for chat templates, and Jinja2 as Transformers sets it up for them.

`chat_templates/` holds templates as the families of models have them: their means, in fewer
words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2031, 5, 4)
TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))
}


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Bonn é"}}}
CONVERSATIONS = {
    "one": [turn("user", "Hello, <world> & 'all'!")],
    "system": [
        turn("system", " Be\nbrief. /no_think "),
        turn("user", "hi"),
        turn("assistant", "yes"),
    ],
    "long": [
        turn("user", "one"),
        turn("assistant", "<think>\nso\n</think>\n\ntwo"),
        turn("user", "three 🙂 日本"),
        turn("assistant", "<think>\nhm\n</think>\n\nfour"),
        turn("user", "five"),
    ],
    "tools": [
        turn("user", "weather?"),
        turn("assistant", "", tool_calls=[CALL]),
        turn("tool", "rain"),
        turn("tool", "more rain"),
        turn("assistant", "<think>\nrain\n</think>\nIt rains."),
    ],
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "what is it like?\nanywhere",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "<Where> & 'when'"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "any": {"type": ["number", "boolean"]},
                },
                "required": ["place", "days"],
            },
        },
    }
]


class Generation(Extension):
    """`{% generation %}` as Transformers has it: a call that returns what it is given."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_given"), [], [], body, lineno=line)

    def _given(self, caller: Any) -> str:
        return str(caller())


def plain_jinja(source: str, variables: Mapping[str, Any]) -> str:
    """What `source` makes of `variables` where nothing is bounded. Raises whatever Jinja2 does."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, Generation]
    )

    def tojson(value: Any, ensure_ascii: bool = False, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **more)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    given = {"tools": None, "documents": None, **variables}  # as Transformers gives them
    return environment.from_string(source).render(given)
