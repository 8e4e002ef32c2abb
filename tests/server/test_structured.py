"""What bodies say of structured outputs, in the engine's terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest
from headway.server.api.structured import ResponseFormat, StructuredFields, structured_outputs_of

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


def of(structured: Any = None, response_format: Any = None) -> StructuredOutputs | None:
    fields = None if structured is None else msgspec.convert(structured, StructuredFields)
    shape: Any = None
    if response_format is not None:
        shape = msgspec.convert(response_format, ResponseFormat)
    return structured_outputs_of(fields, shape)


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA} | fields}


@pytest.mark.parametrize(
    ("structured", "response_format", "expected"),
    [
        (None, None, None),
        (None, {"type": "text"}, None),
        (None, {"type": "json_object"}, {"json_object": True}),
        (None, schema_format(), {"json": SCHEMA}),
        (None, schema_format(strict=False, description="d"), {"json": SCHEMA}),
        (None, schema_format(schema=None), {"json_object": True}),
        (None, {"type": "json_schema", "json_schema": {"name": "n"}}, {"json_object": True}),
        ({"json": SCHEMA}, None, {"json": SCHEMA}),
        ({"json": '{"type": "null"}', "regex": None}, None, {"json": '{"type": "null"}'}),
        ({"regex": "a+"}, {"type": "text"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, None, {"choice": ["a", "b"]}),
        ({"grammar": 'start: "a"'}, None, {"grammar": 'start: "a"'}),
        ({"json_object": True, "json": None}, None, {"json_object": True}),
        (
            {"json": SCHEMA, "whitespace_pattern": " ?", "disable_any_whitespace": False},
            None,
            {"json": SCHEMA, "whitespace_pattern": " ?"},
        ),
    ],
)
def test_each_form_is_understood(
    structured: Any, response_format: Any, expected: dict[str, Any] | None
) -> None:
    found = of(structured, response_format)
    assert found == (None if expected is None else StructuredOutputs(**expected))


@pytest.mark.parametrize(
    ("structured", "response_format", "field"),
    [
        ({}, None, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, None, "structured_outputs"),
        ({"regex": ""}, None, "structured_outputs.regex"),
        ({"choice": []}, None, "structured_outputs.choice"),
        ({"regex": "a"}, {"type": "json_object"}, "response_format"),
        (
            None,
            schema_format(schema={"const": "a" * (1 << 20)}),
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_is_wrong_is_named_as_the_body_names_it(
    structured: Any, response_format: Any, field: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        of(structured, response_format)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("structured", "response_format"),
    [
        ({"guided_json": {}}, None),
        ({"structural_tag": "x"}, None),
        ({"disable_additional_properties": True, "json": {}}, None),
        ({"choice": "a"}, None),
        (None, {"type": "xml"}),
        (None, {"type": "json_schema"}),
        (None, schema_format(other=1)),
    ],
)
def test_other_forms_are_refused(structured: Any, response_format: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        of(structured, response_format)
