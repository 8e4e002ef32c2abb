"""anthropic-python: messages, streams, tools, counting, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
GREEDY = {"extra_body": {"temperature": 0}}
"""The client has no argument of that name any more."""
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(server_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_and_its_stream_are_one_text(
    client: anthropic.Anthropic, model_name: str
) -> None:
    asked = {
        "model": model_name,
        "messages": QUESTION,
        "max_tokens": 64,
        **GREEDY,
        "system": [
            {"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}}
        ],
    }
    whole = client.messages.create(**asked)
    assert whole.stop_reason == "end_turn"
    assert "Tokyo" in whole.content[0].text
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(
        model=model_name, messages=QUESTION, system=asked["system"]
    )
    cached = final.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == final.usage.input_tokens + cached


def test_an_async_stream(server_url: str, model_name: str) -> None:
    async def ask() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=server_url, api_key="none") as client,
            client.messages.stream(
                model=model_name, messages=QUESTION, max_tokens=64, **GREEDY
            ) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert "Tokyo" in asyncio.run(ask())


def test_a_stop_sequence(client: anthropic.Anthropic, model_name: str) -> None:
    answer = client.messages.create(
        model=model_name,
        messages=QUESTION,
        max_tokens=64,
        **GREEDY,
        stop_sequences=["Tokyo"],
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Tokyo")


def test_a_tool_is_called_and_its_result_taken(
    client: anthropic.Anthropic, model_name: str
) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = {"model": model_name, "max_tokens": 128, "tools": [TOOL], **GREEDY}
    answer = client.messages.create(
        messages=messages, tool_choice={"type": "tool", "name": "get_weather"}, **asked
    )
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert list(call.input) == ["city"]
    with client.messages.stream(messages=messages, tool_choice={"type": "any"}, **asked) as stream:
        final = stream.get_final_message()
    assert [block.name for block in final.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    messages += [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(messages=messages, tool_choice={"type": "none"}, **asked)
    assert answer.content[0].text


def test_errors_are_the_clients_own_classes(client: anthropic.Anthropic, model_name: str) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="another", messages=QUESTION, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model=model_name, messages=QUESTION, max_tokens=1, extra_body={"temperature": -1}
        )
