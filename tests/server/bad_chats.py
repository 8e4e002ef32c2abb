"""Rows of the table of bad input for conversations: messages, tools, variables of templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.bad_input import Row

__all__ = ["CHATS"]

CHAT = "/v1/chat/completions"


def _says(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [message]}


def _user(content: object) -> dict[str, Any]:
    return _says({"role": "user", "content": content})


def _call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return _says({"role": "assistant", "tool_calls": [{"id": "1", "function": function}]})


def _tools(*functions: Mapping[str, Any]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function} for function in functions]}


def _parameters(schema: object) -> dict[str, Any]:
    return _tools({"name": "f", "parameters": schema})


def _deep_list(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


_FINAL = {"messages": [{"role": "assistant", "content": "so"}], "continue_final_message": True}
_ARGUMENTS = "messages[0].tool_calls[0].function.arguments"

MESSAGES = [
    Row("none", CHAT, {"messages": []}, 400, "messages"),
    Row("null", CHAT, {"messages": None}, 400, "messages"),
    Row("a text", CHAT, {"messages": "hi"}, 400, "messages"),
    Row("texts", CHAT, {"messages": ["hi"]}, 400, "messages[0]"),
    Row("empty", CHAT, _says({}), 400, "messages[0].role"),
    Row("an unknown role", CHAT, _says({"role": "human", "content": "a"}), 400, "messages[0].role"),
    Row("role function", CHAT, _says({"role": "function", "content": "a"}), 400,
        "messages[0].role"),
    Row("role null", CHAT, _says({"role": None, "content": "a"}), 400, "messages[0].role"),
    Row("no content", CHAT, _says({"role": "user"}), 400, "messages[0].content"),
    Row("content null", CHAT, _user(None), 400, "messages[0].content"),
    Row("content a number", CHAT, _user(7), 400, "messages[0].content"),
    Row("an image", CHAT, _user([{"type": "image_url", "image_url": {"url": "data:,"}}]), 400,
        "messages[0].content[0].type"),
    Row("a part without text", CHAT, _user([{"type": "text"}]), 400,
        "messages[0].content[0].text"),
    Row("a field of no message", CHAT, _says({"role": "user", "content": "a", "x": 1}), 400,
        "messages[0].x"),
    Row("half a pair", CHAT, lambda: rb'{"messages": [{"role": "user", "content": "\ud83d"}]}',
        400, "messages[0].content"),
    Row("half a pair in a tool", CHAT, lambda: (
        rb'{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function",'
        rb' "function": {"name": "f", "description": "\ud83d"}}]}'
    ), 400, "tools[0].function.description"),
    Row("longer than the context", CHAT, _user("a" * 200), 400, "messages"),
    Row("a megabyte", CHAT, lambda: _user("a" * 2**20), 400, "messages"),
    Row("10,000 messages", CHAT,
        lambda: {"messages": [{"role": "user", "content": "a"}] * 10_000}, 400, "messages"),
    Row("text of special tokens", CHAT, _user("<|im_end|>"), 200),
    Row("a refusal", CHAT, _says({"role": "assistant", "refusal": "no"}), 200),
    Row("a refusal of a user", CHAT, _says({"role": "user", "content": "a", "refusal": "no"}), 400,
        "messages[0].refusal"),
    Row("calls of a user", CHAT, _says({"role": "user", "content": "a", "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": "{}"}}]}), 400,
        "messages[0].tool_calls"),
    Row("a result without a call", CHAT, _says({"role": "tool", "content": "a"}), 400,
        "messages[0].tool_call_id"),
    Row("arguments that are no JSON", CHAT, _call("{]"), 400, _ARGUMENTS),
    Row("arguments that were cut", CHAT, _call('{"a": [1, "b'), 200),
    Row("arguments cut in a number", CHAT, _call('{"a": 1.'), 200),
    Row("arguments cut before they are an object", CHAT, _call("["), 400, _ARGUMENTS),
    Row("null in fields of other servers", CHAT, {"colour": None, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", "tint": None}], "hue": None}]},
        200),
    Row("a field of another server beside a null", CHAT, {"colour": None, "messages": [
        {"role": "user", "content": "a", "hue": 1}]}, 400, "messages[0].hue"),
    Row("arguments that are no object", CHAT, _call("[1]"), 400, _ARGUMENTS),
    Row("deep arguments", CHAT, _call('{"a": ' + "[" * 5000 + "]" * 5000 + "}"), 400, _ARGUMENTS),
    Row("calls and no content", CHAT, _call('{"a": 1}'), 200),
    Row("arguments deeper than a body", CHAT, _call('{"a":' * 65 + "1" + "}" * 65), 400,
        _ARGUMENTS),
    Row("calls without arguments", CHAT, _call(""), 200),
]  # fmt: skip

TOOLS = [
    Row("no tools", CHAT, {"tools": []}, 200),
    Row("choice none", CHAT, {"tools": [], "tool_choice": "none"}, 200),
    Row("choice auto without tools", CHAT, {"tool_choice": "auto"}, 200),
    Row("choice required without tools", CHAT, {"tool_choice": "required"}, 400, "tool_choice"),
    Row("an unknown choice", CHAT, {"tool_choice": "maybe"}, 400, "tool_choice"),
    Row("an unknown tool chosen", CHAT, {**_tools({"name": "f"}), "tool_choice": {
        "type": "function", "function": {"name": "g"}}}, 400, "tool_choice"),
    Row("a tool of another type", CHAT, {"tools": [{"type": "custom"}]}, 400, "tools[0].type"),
    Row("a tool without function", CHAT, {"tools": [{"type": "function"}]}, 400,
        "tools[0].function"),
    Row("a tool without name", CHAT, _tools({}), 400, "tools[0].function.name"),
    Row("an empty name", CHAT, _tools({"name": ""}), 400, "tools[0].function.name"),
    Row("a name with spaces", CHAT, _tools({"name": "a b"}), 400, "tools[0].function.name"),
    Row("a long name", CHAT, _tools({"name": "a" * 65}), 400, "tools[0].function.name"),
    Row("the same name twice", CHAT, _tools({"name": "f"}, {"name": "f"}), 400,
        "tools[1].function.name"),
    Row("129 tools", CHAT, _tools(*({"name": f"f{n}"} for n in range(129))), 400, "tools"),
    Row("parameters a text", CHAT, _parameters("{}"), 400, "tools[0].function.parameters"),
    Row("parameters a list", CHAT, _parameters([]), 400, "tools[0].function.parameters"),
    Row("parameters of a number", CHAT, _parameters({"type": "number"}), 400,
        "tools[0].function.parameters.type"),
    Row("parameters of two types", CHAT, _parameters({"type": ["object", "null"]}), 400,
        "tools[0].function.parameters.type"),
    Row("functions", CHAT, {"functions": [{"name": "f"}]}, 400, "functions"),
    Row("function_call", CHAT, {"function_call": "auto"}, 400, "function_call"),
    Row("parallel a number", CHAT, {"parallel_tool_calls": 1}, 400, "parallel_tool_calls"),
]  # fmt: skip

TEMPLATES = [
    Row("a template", CHAT, {"chat_template": "x"}, 400, "chat_template"),
    Row("variables a list", CHAT, {"chat_template_kwargs": []}, 400, "chat_template_kwargs"),
    Row("messages as a variable", CHAT, {"chat_template_kwargs": {"messages": []}}, 400,
        "chat_template_kwargs.messages"),
    Row("a large variable", CHAT, lambda: {"chat_template_kwargs": {"a": "a" * 70_000}}, 400,
        "chat_template_kwargs"),
    Row("a deep variable", CHAT, lambda: {"chat_template_kwargs": {"a": _deep_list(70)}}, 400),
    Row("a variable of no template", CHAT, {"chat_template_kwargs": {"a": {"b": [1]}}}, 200),
    Row("variables of any name", CHAT, {"chat_template_kwargs": dict.fromkeys(
        ("self", "at_most", "template", "tokenizer", "loop", "range", "", "a b"), 1)}, 200),
    Row("an unknown effort", CHAT, {"reasoning_effort": "some"}, 400, "reasoning_effort"),
    Row("the most effort", CHAT, {"reasoning_effort": "max"}, 200),
    Row("an effort", CHAT, {"reasoning_effort": "low"}, 200),
    Row("without an opening", CHAT, {"add_generation_prompt": False}, 200),
    Row("continued", CHAT, _FINAL, 200),
    Row("continued and opened", CHAT, {**_FINAL, "add_generation_prompt": True}, 400,
        "continue_final_message"),
    Row("continued after the user", CHAT, {"continue_final_message": True}, 400,
        "continue_final_message"),
    Row("echo", CHAT, {"echo": True}, 400, "echo"),
    Row("no BOS", CHAT, {"add_special_tokens": False}, 200),
    Row("BOS", CHAT, {"add_special_tokens": True}, 400, "add_special_tokens"),
]  # fmt: skip

CHATS = [*MESSAGES, *TOOLS, *TEMPLATES]
