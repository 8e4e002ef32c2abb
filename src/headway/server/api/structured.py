"""What a body may hold an output to: vLLM's `structured_outputs`, OpenAI's `response_format`."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest

__all__ = ["JsonSchema", "ResponseFormat", "StructuredFields", "structured_outputs_of"]


class StructuredFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one kind, and how JSON is spaced. Names are vLLM's."""

    json: str | dict[str, Any] | None = None
    """A JSON schema, or its text."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """In llguidance's dialect of Lark, or in GBNF."""
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class TextFormat(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    """Anything."""


class JsonFormat(msgspec.Struct, tag="json_object", forbid_unknown_fields=True):
    """Some JSON object."""


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    schema: dict[str, Any] | None = None
    """None: any JSON object."""
    description: str | None = None
    strict: bool | None = None
    """Without effect: the schema is followed in any case."""


class SchemaFormat(msgspec.Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat: TypeAlias = TextFormat | JsonFormat | SchemaFormat


def structured_outputs_of(
    fields: StructuredFields | None, response_format: ResponseFormat | None
) -> StructuredOutputs | None:
    """What the fields `structured_outputs` and `response_format` of a body come to.

    Raises `InvalidRequest`, naming the path in the body.
    """
    asked: StructuredOutputs | None = None
    match response_format:
        case JsonFormat():
            asked = StructuredOutputs(json_object=True, path="response_format")
        case SchemaFormat(json_schema=JsonSchema(schema=None)):
            asked = StructuredOutputs(json_object=True, path="response_format.json_schema")
        case SchemaFormat(json_schema=given):
            path = "response_format.json_schema.schema"
            asked = StructuredOutputs(json=given.schema, path=path)
    if fields is None:
        return asked
    if asked is not None:
        raise InvalidRequest("response_format", "cannot go with structured_outputs")
    return StructuredOutputs(
        json=fields.json,
        regex=fields.regex,
        choice=fields.choice,
        grammar=fields.grammar,
        json_object=fields.json_object,
        disable_any_whitespace=fields.disable_any_whitespace or False,
        whitespace_pattern=fields.whitespace_pattern,
    )
