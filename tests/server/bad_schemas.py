"""Rows of the table of bad input for what outputs are held to: schemas, patterns and grammars, in
each field that takes them, and what contradicts them; see `bad_input`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hard_schemas import nested, values
from server.anything import HALVES
from server.bad_input import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Row

__all__ = ["SCHEMAS"]

_Sent = dict[str, Any]


def held(**fields: object) -> _Sent:
    return {"structured_outputs": fields}


def in_json(schema: object) -> _Sent:
    return held(json=schema)


def formatted(schema: object) -> _Sent:
    shape = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": shape}}


def answered(schema: object) -> _Sent:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}


def called(schema: object, choice: object = "required") -> _Sent:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return {"tools": [tool], "tool_choice": choice}


def called_back(schema: object) -> _Sent:
    tool = {"type": "function", "name": "f", "parameters": schema}
    return {"tools": [tool], "tool_choice": "required"}


def used(schema: object) -> _Sent:
    return {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}}


def member(schema: object) -> _Sent:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


_WAYS: dict[str, tuple[str, Callable[[object], _Sent], str]] = {
    "response_format": (CHAT, formatted, "response_format.json_schema.schema"),
    "structured_outputs": (
        COMPLETIONS,
        lambda schema: held(json=schema),
        "structured_outputs.json",
    ),
    "tools": (CHAT, called, "tools[0].function.parameters"),
    "text.format": (RESPONSES, answered, "text.format.schema"),
    "tools of responses": (RESPONSES, called_back, "tools[0].parameters"),
    "tools of messages": (MESSAGES, used, "tools[0].input_schema"),
}
_OFTEN = ("response_format", "structured_outputs", "tools")


def _rows(name: str, schema: object, status: int, *ways: str) -> list[Row]:
    """In every field, or in these."""
    rows = []
    for way in ways or _WAYS:
        path, sent, param = _WAYS[way]
        named = None if status == 200 else param
        rows.append(Row(f"{name}: {way}", path, sent(schema), status, named))
    return rows


_RING = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
_QUANTIFIERS = "(((a{1,100}){1,100}){1,100}){1,100}"

RECURSIVE = [
    *_rows("refs in a ring", _RING, 400),
    *_rows("a ref to nothing", member({"$ref": "#/x"}), 400),
    *_rows("a ref to elsewhere", member({"$ref": "http://a.b/c"}), 400, *_OFTEN),
    *_rows("itself within", {"properties": {"a": {"$ref": "#"}}}, 200),
    *_rows("itself within without end", member({"$ref": "#"}), 200, *_OFTEN),
    Row("itself", CHAT, formatted({"$ref": "#"}), 400, "response_format.json_schema.schema"),
    Row("rules in a ring", COMPLETIONS, held(grammar="start: a\na: b\nb: a"), 400,
        "structured_outputs.grammar"),
    Row("a rule that begins with itself", COMPLETIONS, held(grammar='start: start "a" | "b"'), 200),
    Row("5,000 brackets", COMPLETIONS,
        held(grammar="root ::= " + "(" * 5000 + '"a"' + ")" * 5000), 400,
        "structured_outputs.grammar"),
    Row("100,000 levels", COMPLETIONS,
        lambda: held(json='{"items":' * 100_000 + "{}" + "}" * 100_000), 400,
        "structured_outputs.json"),
]  # fmt: skip

EXPLODING = [
    *_rows("oneOf of depth 8", member(nested(8, "oneOf")), 400, "response_format", "tools"),
    *_rows("20,000 values", member({"enum": values(20_000)}), 200, *_OFTEN),
    *_rows("nested quantifiers", member({"pattern": f"^{_QUANTIFIERS}$"}), 200, *_OFTEN),
    *_rows("30,000 optional letters", member({"pattern": "a?" * 30_000}), 400, *_OFTEN),
    *_rows("multiples of a large number", member({"multipleOf": 999_983}), 400, *_OFTEN),
    Row("600 optional members", CHAT,
        lambda: formatted({"type": "object", "properties": {f"p{i}": {} for i in range(600)}}), 400,
        "response_format.json_schema.schema"),
    Row("a schema of a megabyte", CHAT, lambda: formatted({"const": "a" * 2**20}), 400,
        "response_format.json_schema.schema"),
    Row("20,000 choices", COMPLETIONS, lambda: held(choice=values(20_000)), 200),
    Row("nested quantifiers: regex", COMPLETIONS, held(regex=_QUANTIFIERS), 200),
    Row("stars of stars", COMPLETIONS, held(regex="((a*)*)*b"), 200),
    Row("30,000 optional letters: regex", COMPLETIONS, held(regex="a?" * 30_000), 400,
        "structured_outputs.regex"),
    Row("a regex of a megabyte", COMPLETIONS, lambda: held(regex="a" * 2**20), 400,
        "structured_outputs.regex"),
]  # fmt: skip

NONE_AT_ALL = [
    *_rows("an unknown type", member({"type": "objct"}), 400),
    *_rows("an open bracket", member({"type": "string", "pattern": "("}), 400),
    *_rows("looking ahead", member({"type": "string", "pattern": "(?=a)b"}), 400),
    *_rows("an open bracket in a name", {"patternProperties": {"(": {}}}, 400, *_OFTEN),
    *_rows("unsatisfiable", member({"type": "integer", "minimum": 5, "maximum": 2}), 400),
    *_rows("not", member({"not": {}}), 400, *_OFTEN),
    *(
        Row(f"{schema!r}", CHAT, formatted(schema), 400, "response_format.json_schema.schema")
        for schema in ("x", 3, True, [1])
    ),
    *(
        Row(f"{schema!r}", COMPLETIONS, held(json=schema), 400, "structured_outputs.json")
        for schema in ("{", "[1]", "", '{"const": NaN}', 3, [1])
    ),
    Row("a bad pattern, left free", CHAT, called(member({"pattern": "("}), "auto"), 400,
        "tools[0].function.parameters"),
    Row("a bad pattern, chosen", CHAT,
        called(member({"pattern": "("}), {"type": "function", "function": {"name": "f"}}), 400,
        "tools[0].function.parameters"),
    Row("a bad pattern, not to be called", CHAT, called(member({"pattern": "("}), "none"), 200),
    Row("a tool", CHAT, called(member({"pattern": "^a+$"})), 200),
    Row("an unknown format", CHAT, {"response_format": {"type": "xml"}}, 400,
        "response_format.type"),
    Row("no regex", COMPLETIONS, held(regex="("), 400, "structured_outputs.regex"),
    Row("an empty regex", COMPLETIONS, held(regex=""), 400, "structured_outputs.regex"),
    Row("no grammar", COMPLETIONS, held(grammar="hello"), 400, "structured_outputs.grammar"),
    Row("a rule of no name", COMPLETIONS, held(grammar="start: other"), 400,
        "structured_outputs.grammar"),
    Row("no choices", COMPLETIONS, held(choice=[]), 400, "structured_outputs.choice"),
    Row("an empty choice", COMPLETIONS, held(choice=["a", ""]), 400, "structured_outputs.choice"),
    Row("a number to choose", COMPLETIONS, held(choice=[1]), 400, "structured_outputs.choice[0]"),
    Row("what no token is for", COMPLETIONS, held(choice=["Z"]), 400, "structured_outputs.choice"),
    Row("nothing", COMPLETIONS, held(), 400, "structured_outputs"),
    Row("two kinds", COMPLETIONS, held(regex="a", choice=["a"]), 400, "structured_outputs"),
    Row("two fields", CHAT, formatted({}) | held(regex="a"), 400, "response_format"),
    Row("an unknown kind", COMPLETIONS, held(xml="a"), 400, "structured_outputs.xml"),
]  # fmt: skip

_A = held(grammar='start: "a"')
_NO_QUOTE = {"bad_words": [chr(4 + 2 * 61)]}
"""The token that a JSON string must begin with."""

CONTRADICTING = [
    Row("longer than its only word", COMPLETIONS, _A | {"min_tokens": 3}, 200),
    Row("longer than its only choice", COMPLETIONS, held(choice=["a"]) | {"min_tokens": 3}, 200),
    Row("calls and a least length", CHAT, called(member({})) | {"min_tokens": 3}, 200),
    Row("ended and never to end", COMPLETIONS, _A | {"ignore_eos": True}, 200),
    Row("ended by its only word", COMPLETIONS, _A | {"stop": "a", "min_tokens": 1}, 200),
    Row("cut before it begins", COMPLETIONS, _A | {"max_tokens": 0}, 200),
    Row("a grammar and allowed tokens", COMPLETIONS, _A | {"allowed_token_ids": [1]}, 400,
        "allowed_token_ids"),
    Row("calls and allowed tokens", CHAT, called({}) | {"allowed_token_ids": [1]}, 400,
        "allowed_token_ids"),
    Row("its only beginning banned", COMPLETIONS, held(json={"enum": ["a"]}) | _NO_QUOTE, 400,
        "structured_outputs"),
    Row("its only beginning banned, in a format", CHAT, formatted({"enum": ["a"]}) | _NO_QUOTE,
        400, "response_format.json_schema.schema"),
    Row("its only beginning banned, in a stream", COMPLETIONS,
        held(json={"enum": ["a"]}) | _NO_QUOTE | {"stream": True}, 400, "structured_outputs"),
    Row("half of a character and then nothing", COMPLETIONS, held(choice=["ü"]), 400,
        "structured_outputs"),
    Row("tokens that are no text", COMPLETIONS, {"allowed_token_ids": [HALVES[0]]}, 200),
]  # fmt: skip

SCHEMAS = [*RECURSIVE, *EXPLODING, *NONE_AT_ALL, *CONTRADICTING]
