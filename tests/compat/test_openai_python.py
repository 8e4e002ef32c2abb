"""openai-python: sync, async, streams, tools, structured output, responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Country(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    is_island: bool


@pytest.fixture
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI, model_name: str) -> None:
    assert [model.id for model in client.models.list()] == [model_name]
    assert client.models.retrieve(model_name).owned_by == "headway"


def test_a_completion_and_its_stream_are_one_text(client: openai.OpenAI, model_name: str) -> None:
    asked = {"model": model_name, "prompt": "The capital of France is", "temperature": 0}
    whole = client.completions.create(**asked, max_tokens=8, logprobs=2)
    assert whole.choices[0].text.startswith(" Paris")
    assert whole.usage.completion_tokens == 8
    assert len(whole.choices[0].logprobs.token_logprobs) == 8
    chunks = list(
        client.completions.create(
            **asked, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_a_chat_with_two_answers(client: openai.OpenAI, model_name: str) -> None:
    answer = client.chat.completions.create(
        model=model_name, messages=QUESTION, n=2, seed=3, max_completion_tokens=16, logprobs=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content for choice in answer.choices)
    assert all(choice.logprobs.content for choice in answer.choices)


def test_a_chat_stream_that_the_client_accumulates(client: openai.OpenAI, model_name: str) -> None:
    with client.chat.completions.stream(
        model=model_name, messages=QUESTION, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert "Tokyo" in final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens > 0


def test_many_async_chats_at_once(server_url: str, model_name: str) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server_url}/v1", max_retries=0) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(
                    model=model_name, messages=QUESTION, temperature=0, stream=True
                )
                texts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
                return "".join(texts)

            return await asyncio.gather(*(one() for _ in range(8)))

    answers = asyncio.run(ask())
    assert len(set(answers)) == 1
    assert "Tokyo" in answers[0]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_tool_that_must_be_called(client: openai.OpenAI, model_name: str, choice: object) -> None:
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    messages = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
    asked = {"model": model_name, "tools": [WEATHER], "tool_choice": choice, "temperature": 0}
    answer = client.chat.completions.create(messages=messages, **asked)
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert (streamed.function.name, json.loads(streamed.function.arguments)) == (
        "get_weather",
        arguments,
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 21}'}
    messages += [answer.choices[0].message.model_dump(), result]
    answer = client.chat.completions.create(
        model=model_name, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=24
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_an_answer_parsed_into_a_class(client: openai.OpenAI, model_name: str) -> None:
    answer = client.chat.completions.parse(
        model=model_name,
        messages=[{"role": "user", "content": "Describe Japan as JSON."}],
        response_format=Country,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Country)


def test_json_without_a_schema(client: openai.OpenAI, model_name: str) -> None:
    answer = client.chat.completions.create(
        model=model_name,
        messages=[{"role": "user", "content": "Give a JSON object with a name and an age."}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=200,
    )
    choice = answer.choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.lstrip().startswith("{")


def test_a_regex_through_extra_body(client: openai.OpenAI, model_name: str) -> None:
    answer = client.completions.create(
        model=model_name,
        prompt="A date: ",
        extra_body={"structured_outputs": {"regex": r"\d{4}-\d\d-\d\d"}},
        max_tokens=20,
    )
    text = answer.choices[0].text
    assert [len(part) for part in text.split("-")] == [4, 2, 2], text


def test_a_response_and_its_stream(client: openai.OpenAI, model_name: str) -> None:
    asked = {"model": model_name, "input": "What is the capital of Japan?", "temperature": 0}
    answer = client.responses.create(**asked)
    assert answer.status == "completed"
    assert "Tokyo" in answer.output_text
    with client.responses.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    assert (events[0], events[-1]) == ("response.created", "response.completed")
    assert final.output_text == answer.output_text


def test_a_response_parsed_into_a_class(client: openai.OpenAI, model_name: str) -> None:
    answer = client.responses.parse(
        model=model_name, input="Describe Japan as JSON.", text_format=Country, temperature=0
    )
    assert isinstance(answer.output_parsed, Country)


def test_a_response_that_calls_a_tool(client: openai.OpenAI, model_name: str) -> None:
    answer = client.responses.create(
        model=model_name,
        input="What is the weather in Paris, in celsius?",
        tools=[{"type": "function", **WEATHER["function"]}],
        tool_choice="required",
        temperature=0,
    )
    (call,) = [item for item in answer.output if item.type == "function_call"][:1]
    assert set(json.loads(call.arguments)) == {"city", "unit"}


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, model_name: str) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.completions.create(model="another", prompt="a")
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=model_name, prompt="a", temperature=-1)
    assert bad.value.param == "temperature"
