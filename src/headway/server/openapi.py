"""`/openapi.json`: OpenAPI 3.1 of every path, from the very structs that bodies are decoded into
and answers encoded from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

from headway.server.api.body import Body

__all__ = ["AnthropicError", "OpenAIError", "Operation", "document"]

_REF = "#/components/schemas/{name}"


class OpenAIErrorDetails(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Struct):
    error: OpenAIErrorDetails


class AnthropicErrorDetails(Struct):
    type: str
    message: str


class AnthropicError(Struct):
    error: AnthropicErrorDetails
    type: Literal["error"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a path takes and gives."""

    path: str
    """With its parameters in braces."""
    method: str
    """In small letters."""
    summary: str
    answer: type[Struct] | None
    """None: text."""
    body: Sequence[type[Struct]] = ()
    """Any of these; none: it takes no body."""
    streams: bool = False
    """With `stream` true it answers server-sent events."""
    error: type[Struct] = OpenAIError


def document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    operations = list(operations)
    kinds = {kind for operation in operations for kind in _kinds(operation)}
    ordered = sorted(kinds, key=lambda kind: (kind.__name__, kind.__module__))
    found, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    references = dict(zip(ordered, found, strict=True))
    for schema in schemas.values():
        if schema.get("additionalProperties") is False:
            schema["additionalProperties"] = {"type": "null"}  # as if it were not there
    for kind, reference in references.items():
        if issubclass(kind, Body):
            schema = schemas[reference["$ref"].rpartition("/")[2]]
            _narrow(schema, kind)
            for field, items in kind.kinds.items():
                of_items = {"anyOf": [references[item] for item in items.values()]}
                _list_in(schema["properties"][field])["items"] = of_items
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _operation(operation, references)
        paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # Keys are asked for only with --api-key.
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _kinds(operation: Operation) -> list[type[Struct]]:
    answer = [] if operation.answer is None else [operation.answer]
    bodies = [body for body in operation.body if issubclass(body, Body)]
    items = [kind for body in bodies for kinds in body.kinds.values() for kind in kinds.values()]
    return [*operation.body, *items, *answer, operation.error]


def _narrow(schema: dict[str, Any], kind: type[Body]) -> None:
    """A field that is taken only where it asks for nothing says so."""
    for field, values in kind.neutral.items():
        schema["properties"][field] = {"enum": [None, *values]}


def _list_in(schema: dict[str, Any]) -> dict[str, Any]:
    """What a field says of lists, which may be one of several things that it takes."""
    places: list[dict[str, Any]] = schema.get("anyOf", [schema])
    (found,) = (each for each in places if each.get("type") == "array")
    return found


def _operation(
    operation: Operation, references: Mapping[type[Struct], dict[str, Any]]
) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary}
    parameters = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    if parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if operation.body:
        schemas = [references[kind] for kind in operation.body]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    error = _response("It went wrong.", "application/json", references[operation.error])
    described["responses"] = {"200": _success(operation, references), "4XX": error, "5XX": error}
    return described


def _success(
    operation: Operation, references: Mapping[type[Struct], dict[str, Any]]
) -> dict[str, Any]:
    if operation.answer is None:
        return _response("Text.", "text/plain", {"type": "string"})
    response = _response("The answer.", "application/json", references[operation.answer])
    if operation.streams:
        response["content"]["text/event-stream"] = {"schema": _EVENT}
    return response


_EVENT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""Of a stream, by its fields; `data` is JSON, or `[DONE]`. OpenAPI 3.1 has no word for streams: its
readers take the schema of one for that of each event, as 3.2's `itemSchema` is."""


def _response(description: str, media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}
