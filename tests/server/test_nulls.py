"""A null field that nobody knows is as if it were not there, wherever it stands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.server.api.body import decode, of_kind
from headway.server.api.chat import ChatRequest
from headway.server.api.messages import MessagesRequest
from headway.server.api.responses import ResponsesRequest
from headway.server.api.responses_input import ITEMS
from headway.server.errors import ApiError

DECODER = msgspec.json.Decoder(ChatRequest)


def body(extra: dict[str, Any]) -> dict[str, Any]:
    """One with `extra` in every struct, and a null in each place that is free."""
    part = {"type": "text", "text": "a"} | extra
    function = {"name": "f", "parameters": {"default": None}} | extra
    called = {"id": "1", "function": {"name": "f", "arguments": "{}"} | extra} | extra
    shape = {"name": "n", "schema": {"const": None}} | extra
    return {
        "messages": [
            {"role": "user", "content": [part]} | extra,
            {"role": "assistant", "content": None, "tool_calls": [called]} | extra,
        ],
        "tools": [{"type": "function", "function": function} | extra],
        "tool_choice": {"type": "function", "function": {"name": "f"} | extra} | extra,
        "response_format": {"type": "json_schema", "json_schema": shape} | extra,
        "logit_bias": {"5": 1},
    } | extra


def test_it_is_left_out_and_what_is_free_stays() -> None:
    found = decode(msgspec.json.encode(body({"hue": None})), DECODER)
    assert found == decode(msgspec.json.encode(body({})), DECODER)
    assert found.tools is not None
    assert found.tools[0].function.parameters == {"default": None}


def test_any_other_value_is_named() -> None:
    sent = body({"hue": None})
    sent["messages"][1]["tool_calls"][0]["function"]["hue"] = False
    with pytest.raises(ApiError) as raised:
        decode(msgspec.json.encode(sent), DECODER)
    assert raised.value.param == "messages[1].tool_calls[0].function.hue"


def test_beside_it_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(ApiError) as raised:
        decode(b'{"messages": [], "hue": null, "temperature": 1e400}', DECODER)
    assert raised.value.param is not None


def test_parts_that_are_decoded_by_their_kind_are_the_same() -> None:
    text = {"type": "input_text", "text": "a", "hue": None, "annotations": None}
    item = of_kind(
        {"type": "message", "role": "user", "content": [text], "hue": None}, ITEMS, "input[0]"
    )
    assert msgspec.to_builtins(item)["content"] == [
        {"type": "input_text", "text": "a"} | {"prompt_cache_breakpoint": None}
    ]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
ASKED: dict[str, Any] = {**CHAT, "model": "m", "max_tokens": 5}


@pytest.mark.parametrize(
    ("kind", "sent", "sibling"),
    [
        (ChatRequest, {**CHAT, "response_format": {"type": "text"}}, "json_schema"),
        (ChatRequest, {**CHAT, "response_format": {"type": "json_object"}}, "json_schema"),
        (MessagesRequest, {**ASKED, "tool_choice": {"type": "none"}}, "disable_parallel_tool_use"),
        (MessagesRequest, {**ASKED, "tool_choice": {"type": "auto"}}, "name"),
        (MessagesRequest, {**ASKED, "thinking": {"type": "disabled"}}, "budget_tokens"),
        (MessagesRequest, {**ASKED, "thinking": {"type": "adaptive"}}, "budget_tokens"),
        (ResponsesRequest, {"input": "a", "text": {"format": {"type": "text"}}}, "name"),
    ],
)
def test_so_is_one_that_only_another_kind_has(
    kind: type[ChatRequest | MessagesRequest | ResponsesRequest],
    sent: dict[str, Any],
    sibling: str,
) -> None:
    decoder = msgspec.json.Decoder(kind)
    expected = decode(msgspec.json.encode(sent), decoder)
    *_, chosen = sent.values()
    place = chosen.get("format") or chosen
    place[sibling] = None
    assert decode(msgspec.json.encode(sent), decoder) == expected
    place[sibling] = 1
    with pytest.raises(ApiError):
        decode(msgspec.json.encode(sent), decoder)
