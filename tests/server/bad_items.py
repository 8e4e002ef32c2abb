"""The table of bad input, for the paths that take items and blocks; see `bad_input`."""

from __future__ import annotations

from typing import Any

from server.bad_input import COUNT, HUGE, MESSAGES, RESPONSES, Row

__all__ = ["ITEMS"]

TEXT: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {
    "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}",
}  # fmt: skip
USE: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t", "content": "1"}


def item(**fields: object) -> dict[str, Any]:
    return {"input": [fields]}


def call(arguments: str) -> dict[str, Any]:
    return {"input": [TEXT, CALL | {"arguments": arguments}]}


def said(*blocks: object, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


RESPONSE_ITEMS = [
    Row("no items", RESPONSES, {"input": []}, 400, "input"),
    Row("null", RESPONSES, {"input": None}, 400, "input"),
    Row("a number", RESPONSES, {"input": 7}, 400, "input"),
    Row("an empty text", RESPONSES, {"input": ""}, 200),
    Row("a number as item", RESPONSES, {"input": [7]}, 400, "input[0]"),
    Row("an empty item", RESPONSES, item(), 400, "input[0].role"),
    Row("a kind that is no text", RESPONSES, item(type=7), 400, "input[0].type"),
    Row("a kind of a megabyte", RESPONSES, lambda: item(type="a" * 2**20), 400, "input[0].type"),
    Row("an unknown role", RESPONSES, item(role="robot", content=""), 400, "input[0].role"),
    Row("no content", RESPONSES, item(role="user"), 400, "input[0].content"),
    Row("a null for content", RESPONSES, item(role="user", content=None), 400, "input[0].content"),
    Row("no parts", RESPONSES, item(role="user", content=[]), 200),
    Row("an image", RESPONSES, item(role="user", content=[{"type": "input_image"}]), 400,
        "input[0].content[0].type"),
    Row("100,000 items", RESPONSES, lambda: {"input": [TEXT] * 100_000}, 400, "input"),
    Row("a megabyte", RESPONSES, lambda: {"input": "a" * 2**20}, 400, "input"),
    Row("instructions of a megabyte", RESPONSES, lambda: {"instructions": "a" * 2**20}, 400,
        "input"),
    Row("30,000 equal characters", RESPONSES, {"input": "a" * 30_000}, 400, "input"),
    Row("arguments that are no JSON", RESPONSES, call("{]"), 400, "input[1].arguments"),
    Row("arguments that were cut", RESPONSES, call('{"a": "b'), 200),
    Row("arguments that are no object", RESPONSES, call("[1]"), 400, "input[1].arguments"),
    Row("arguments too deep", RESPONSES, call("[" * 100_000), 400, "input[1].arguments"),
    Row("half a pair in arguments", RESPONSES, call(r'{"a": "\ud83d"}'), 400,
        "input[1].arguments"),
    Row("what was encrypted elsewhere", RESPONSES, item(type="reasoning", encrypted_content="x"),
        400, "input[0].encrypted_content"),
    Row("an answer that is kept nowhere", RESPONSES, {"previous_response_id": "resp_1"}, 400,
        "previous_response_id"),
    Row("a conversation", RESPONSES, {"conversation": {"id": "x"}}, 400, "conversation"),
    Row("in the background", RESPONSES, {"background": True}, 400, "background"),
    Row("a built-in tool", RESPONSES, {"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    Row("100,000 tools", RESPONSES,
        lambda: {"tools": [{"type": "function", "name": "f"}] * 100_000}, 400, "tools"),
    Row("a call without tools", RESPONSES, {"tool_choice": "required"}, 400, "tool_choice"),
    Row("a schema that is no object", RESPONSES, {"text": {"format": {
        "type": "json_schema", "name": "x", "schema": [1]}}}, 400, "text.format.schema"),
    Row("a schema without a name", RESPONSES, {"text": {"format": {
        "type": "json_schema", "schema": {}}}}, 400, "text.format.name"),
    Row("metadata that are none", RESPONSES, {"metadata": [1]}, 400, "metadata"),
]  # fmt: skip

BLOCKS = [
    Row("no messages", path, {"messages": []}, 400, "messages")
    for path in (MESSAGES, COUNT)
] + [
    Row("null", MESSAGES, {"messages": None}, 400, "messages"),
    Row("a number as message", MESSAGES, {"messages": [7]}, 400, "messages[0]"),
    Row("an empty message", MESSAGES, {"messages": [{}]}, 400, "messages[0].role"),
    Row("an unknown role", MESSAGES, said(role="robot"), 400, "messages[0].role"),
    Row("no blocks", MESSAGES, said(), 200),
    Row("an empty block", MESSAGES, said({}), 400, "messages[0].content[0].type"),
    Row("an image", MESSAGES, said({"type": "image"}), 400, "messages[0].content[0].type"),
    Row("a call by the user", MESSAGES, said(USE), 400, "messages[0].content[0].type"),
    Row("a result by the assistant", MESSAGES, said(RESULT, role="assistant"), 400,
        "messages[0].content[0].type"),
    Row("an input that is no object", MESSAGES, said(USE | {"input": [1]}, role="assistant"), 400,
        "messages[0].content[0].input"),
    Row("an answer that begins with nothing", MESSAGES, said(role="assistant"), 400, "messages"),
    Row("an answer that begins with a call", MESSAGES, said(USE, role="assistant"), 400,
        "messages"),
    Row("100,000 messages", MESSAGES, lambda: {"messages": [TEXT] * 100_000}, 400, "messages"),
    Row("a megabyte", MESSAGES, lambda: said({"type": "text", "text": "a" * 2**20}), 400,
        "messages"),
    Row("a megabyte to count", COUNT, lambda: {"system": "a" * 2**20}, 400, "messages"),
    Row("no limit", MESSAGES, {"max_tokens": None}, 400, "max_tokens"),
    Row("no token", MESSAGES, {"max_tokens": 0}, 200),
    Row("a tool without schema", MESSAGES, {"tools": [{"name": "f"}]}, 400,
        "tools[0].input_schema"),
    Row("a tool of no name", MESSAGES, {"tools": [{"name": "", "input_schema": {}}]}, 400,
        "tools[0].name"),
    Row("a tool for no object", MESSAGES,
        {"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, 400,
        "tools[0].input_schema.type"),
    Row("a call without tools", MESSAGES, {"tool_choice": {"type": "any"}}, 400, "tool_choice"),
    Row("100,000 stops", MESSAGES, lambda: {"stop_sequences": ["a"] * 100_000}, 400,
        "stop_sequences"),
    Row("hotter than 1", MESSAGES, {"temperature": 1.01}, 400, "temperature"),
    Row("a priority to count", COUNT, {"priority": 1}, 400, "priority"),
]  # fmt: skip

INTEGERS = [
    Row(f"{field} {value!r}", path, {field: value}, 400, field)
    for path, field in [
        (RESPONSES, "max_output_tokens"),
        (RESPONSES, "top_logprobs"),
        (MESSAGES, "max_tokens"),
        (MESSAGES, "top_k"),
    ]
    for value in (-2, "7", 1.5, True, [], {}, HUGE, 2**64)
]

ITEMS = [*RESPONSE_ITEMS, *BLOCKS, *INTEGERS]
