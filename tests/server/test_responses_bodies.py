from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest
from headway.server.api import responses
from headway.server.api.conversation import Tool, ToolChoice
from server.fake_engine import FakeEngine
from server.parted import PROMPT, WEATHER, Asked, asked, everything
from server.serving import MODEL


@pytest.fixture(name="asked", autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return asked(responses, monkeypatch)


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/responses", json={"input": "hi"} | body)


CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
CALLED = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Oslo"}},
}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
        (
            [
                {"type": "message", "role": "developer", "content": "be brief"},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_text", "text": "b"},
                    ],
                },
            ],
            [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "a\nb"}],
        ),
        (
            [
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "hm"}],
                },
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
                },
                CALL,
                CALL | {"call_id": "c2"},
                {"type": "function_call_output", "call_id": "c1", "output": "hot"},
                {
                    "type": "function_call_output",
                    "call_id": "c2",
                    "output": [{"type": "input_text", "text": "warm"}],
                },
                {"role": "assistant", "content": "It is hot."},
            ],
            [
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "reasoning": "hm",
                    "tool_calls": [CALLED, CALLED | {"id": "c2"}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "hot"},
                {"role": "tool", "tool_call_id": "c2", "content": "warm"},
                {"role": "assistant", "content": "It is hot."},
            ],
        ),
        (
            [CALL, {"role": "assistant", "content": "Well."}],
            [
                {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                {"role": "assistant", "content": "Well."},
            ],
        ),
    ],
)
def test_items_become_turns(
    client: httpx.Client, asked: Asked, items: object, messages: object
) -> None:
    assert post(client, input=items).status_code == 200
    assert asked.conversations[-1].messages == messages


def test_instructions_come_first(client: httpx.Client, asked: Asked) -> None:
    post(client, instructions="be brief")
    first = asked.conversations[-1].messages[0]
    assert first == {"role": "system", "content": "be brief"}


def test_an_answer_can_be_sent_back_as_it_came(
    openai_client: openai.OpenAI, engine: FakeEngine, asked: Asked
) -> None:
    engine.script = everything
    answer = openai_client.responses.create(model=MODEL, input="hi")
    turns: list[Any] = [{"role": "user", "content": "hi"}, *answer.output]
    openai_client.responses.create(model=MODEL, input=turns)
    openai_client.responses.create(model=MODEL, input=turns[1:])
    said = asked.conversations[-1].messages[0]
    assert said["content"] == "Let me see."
    assert said["reasoning"] == "It is hot."
    assert said["tool_calls"][0]["function"] == CALLED["function"]


def test_tools_and_how_to_answer_reach_the_conversation(client: httpx.Client, asked: Asked) -> None:
    response = post(
        client,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
    )
    [conversation] = asked.conversations
    assert conversation.tools == [
        Tool(
            name="weather",
            description="What it is like outside.",
            parameters=WEATHER["parameters"],
            strict=True,
        )
    ]
    assert conversation.tool_choice == ToolChoice("required", "weather")
    assert not conversation.parallel_tool_calls
    assert conversation.reasoning_effort == "low"
    assert response.json()["tools"] == [WEATHER]
    assert response.json()["tool_choice"] == {"type": "function", "name": "weather"}


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_mode_is_a_tool_choice(client: httpx.Client, asked: Asked, mode: Any) -> None:
    post(client, tools=[WEATHER], tool_choice=mode)
    assert asked.conversations[-1].tool_choice == ToolChoice(mode)


def test_when_it_is_served_may_be_said(client: httpx.Client, engine: FakeEngine) -> None:
    post(client, priority=-2, cache_salt="mine", deadline_ms=500, queue_timeout_ms=1500)
    request = engine.added.get_nowait()
    assert (request.priority, request.cache_salt) == (-2, "mine")
    assert (request.deadline_s, request.queue_timeout_s) == (0.5, 1.5)


def test_sampling_is_as_asked(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.sampling_defaults = {"temperature": 0.5, "top_p": 0.8}
    answer = post(client, temperature=0.25).json()
    params = engine.added.get_nowait().params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.25, 0.8, None)
    assert (answer["temperature"], answer["top_p"]) == (0.25, 0.8)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputs(json_object=True)),
        (
            {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True},
            StructuredOutputs(json={"type": "object"}),
        ),
    ],
)
def test_a_format_holds_the_output_to_it(
    client: httpx.Client, engine: FakeEngine, form: object, expected: object
) -> None:
    answer = post(client, text={"format": form}).json()
    Response.model_validate(answer)
    assert engine.added.get_nowait().params.structured_outputs == expected


def test_nothing_is_kept_though_it_is_asked(client: httpx.Client) -> None:
    assert post(client, store=True).json()["store"] is False


@pytest.mark.parametrize(
    "field",
    [
        {"metadata": None},
        {"service_tier": "auto"},
        {"safety_identifier": "x"},
        {"prompt_cache_key": "x"},
        {"truncation": "disabled"},
        {"background": False},
        {"previous_response_id": None},
        {"include": ["reasoning.encrypted_content"]},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"max_tool_calls": 3},
        {"stream_options": None},
    ],
)
def test_what_asks_for_nothing_is_taken(client: httpx.Client, field: dict[str, object]) -> None:
    assert post(client, **field).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [CALL | {"arguments": "[1]"}]}, "input[0].arguments"),
        ({"input": [CALL | {"arguments": "{]"}]}, "input[0].arguments"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        ({"tools": [{"type": "web_search", "search_context_size": "low"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "mcp", "name": "x"}}, "tool_choice.type"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": -2}, "top_logprobs"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"queue_timeout_ms": 0}, "queue_timeout_ms"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_wrong_is_named(client: httpx.Client, body: dict[str, object], param: str) -> None:
    response = post(client, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_what_would_work_is_said(client: httpx.Client) -> None:
    error = post(client, input=[{"type": "web_search_call"}]).json()["error"]
    assert error["message"] == (
        "input[0].type: 'web_search_call' is not supported (only 'message', 'function_call', "
        "'function_call_output', 'reasoning')"
    )
    error = post(client, input=[{"role": "robot", "content": ""}]).json()["error"]
    assert error["message"] == (
        "input[0].role: 'robot' is not supported (only 'assistant', 'developer', 'system', 'user')"
    )


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("messages[0].content", "instructions.content"),
        ("messages[2].content", "input[1].content"),
        ("messages", "input"),
        ("reasoning_effort", "reasoning.effort"),
        ("tools[0].parameters.type", "tools[0].parameters.type"),
    ],
)
def test_what_the_template_refuses_is_named_as_the_client_wrote_it(
    client: httpx.Client, asked: Asked, field: str, param: str
) -> None:
    asked.error = InvalidRequest(field, "is odd")
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    error = post(client, instructions="x", input=items).json()["error"]
    assert error["param"] == param
    assert error["message"] == f"{param}: is odd"


@pytest.mark.parametrize(
    ("field", "param"),
    [("prompt", "input"), ("logprobs", "top_logprobs"), ("max_tokens", "max_output_tokens")],
)
def test_what_the_engine_refuses_is_named_as_the_client_wrote_it(
    client: httpx.Client, engine: FakeEngine, field: str, param: str
) -> None:
    engine.refusal = InvalidRequest(field, "is too much")
    error = post(client).json()["error"]
    assert (error["param"], error["message"]) == (param, f"{param}: is too much")


def test_an_unknown_model_is_not_found(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        openai_client.responses.create(model="another", input="hi")


def test_the_prompt_goes_to_the_engine(client: httpx.Client, engine: FakeEngine) -> None:
    post(client)
    assert tuple(engine.added.get_nowait().prompt_token_ids) == PROMPT
