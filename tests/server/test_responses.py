from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from headway.core.plan import TokenLogprobs
from headway.server.api import responses
from server.fake_engine import HANG, FakeEngine, delta
from server.parted import WEATHER, Asked, asked, everything
from server.serving import MODEL, TIMEOUT_S

EVENT = TypeAdapter[Any](ResponseStreamEvent)


@pytest.fixture(name="asked", autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return asked(responses, monkeypatch)


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/responses", json={"input": "hi"} | body)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events, each of which is named as its type is, and what openai-python expects."""
    events = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    return events


def test_an_answer_has_openais_shape(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta("Yes", finish="stop", cached=4)]
    answer = post(client, instructions="be brief", metadata={"a": "b"}, user="Ada").json()
    Response.model_validate(answer)
    assert answer.pop("id").startswith("resp_")
    assert isinstance(answer.pop("created_at"), int)
    [message] = answer.pop("output")
    assert message.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "Yes", "annotations": [], "logprobs": []}
    assert message == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    assert answer == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": MODEL,
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 13,
        },
        "instructions": "be brief",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": None},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "user": "Ada",
        "background": False,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
    }
    assert engine.added.get_nowait().tenant == "Ada"


def test_thoughts_text_and_calls_are_items(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = everything
    answer = openai_client.responses.create(model=MODEL, input="hi", tools=[WEATHER])
    thought, message, call = answer.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "It is hot."
    assert message.type == "message"
    assert answer.output_text == "Let me see."
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", '{"city":"Oslo"}')
    assert answer.usage is not None
    assert answer.usage.output_tokens == 9
    assert answer.usage.output_tokens_details.reasoning_tokens == 3
    assert len({item.id for item in answer.output}) == 3


def test_a_streams_events_are_in_openais_order(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = everything
    events = events_of(post(client, stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert [item["status"] for item in done] == ["completed"] * 3
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["status"] for item in added] == ["in_progress"] * 3
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], ""]


def test_a_stream_comes_to_what_an_answer_in_one_piece_is(
    client: httpx.Client, engine: FakeEngine
) -> None:
    def anonymous(answer: dict[str, Any]) -> object:
        identity = answer["id"].removeprefix("resp_")
        return json.loads(json.dumps(answer | {"created_at": 0}).replace(identity, ""))

    engine.script = everything
    streamed = events_of(post(client, stream=True))[-1]["response"]
    assert anonymous(streamed) == anonymous(post(client).json())


def test_openai_python_puts_a_stream_together(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = everything
    with openai_client.responses.stream(model=MODEL, input="hi") as stream:
        seen = list(stream)
        answer = stream.get_final_response()
    texts = [event.snapshot for event in seen if event.type == "response.output_text.delta"]
    assert texts == ["Let me ", "Let me see."]
    arguments = [e.snapshot for e in seen if e.type == "response.function_call_arguments.delta"]
    assert arguments == ['{"city":', '{"city":"Oslo"}']
    assert answer.output_text == "Let me see."


def test_the_asynchronous_client_streams_too(
    engine: FakeEngine, fake_server: tuple[FakeEngine, str]
) -> None:
    engine.script = everything

    async def text() -> str:
        url = f"{fake_server[1]}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none", timeout=TIMEOUT_S) as client,
            client.responses.stream(model=MODEL, input="hi") as stream,
        ):
            return (await stream.get_final_response()).output_text

    assert asyncio.run(text()) == "Let me see."


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_limit_cut_is_incomplete(
    client: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    engine.script = lambda request: [delta("think:a"), delta("b"), delta("c", finish="length")]
    response = post(client, stream=stream, max_output_tokens=3)
    if stream:
        last = events_of(response)[-1]
        assert last["type"] == "response.incomplete"
        answer = last["response"]
    else:
        answer = response.json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]
    assert engine.added.get_nowait().params.max_tokens == 3


def test_an_empty_answer_has_no_items(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta(tokens=[2], finish="stop")]
    assert post(client).json()["output"] == []
    kinds = [event["type"] for event in events_of(post(client, stream=True))]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]


def test_a_stream_that_breaks_off_says_why_and_fails(
    openai_client: openai.OpenAI, client: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), delta(finish="error", error="NaN logits")]
    error, failed = events_of(post(client, stream=True))[-2:]
    number = error.pop("sequence_number")
    assert error == {
        "type": "error",
        "code": "generation_failed",
        "message": "NaN logits",
        "param": None,
    }
    assert failed["type"] == "response.failed"
    assert failed["sequence_number"] == number + 1
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "NaN logits"}
    stream = openai_client.responses.create(model=MODEL, input="hi", stream=True)
    assert [event.type for event in stream][-2:] == ["error", "response.failed"]


def test_a_client_that_goes_away_ends_its_request(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), HANG]
    with openai_client.responses.create(model=MODEL, input="hi", stream=True) as stream:
        next(iter(stream))
    assert engine.aborted.get(timeout=TIMEOUT_S).startswith("resp_")


def row(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, 1, ((token, -0.5), (ord("z"), -1.5)))


def test_log_probabilities_are_those_of_the_text(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        delta("think:x", tokens=[ord("x")], logprobs=(row(ord("x")),)),
        delta("", tokens=[ord("a")], logprobs=(row(ord("a")),)),
        delta("ab", tokens=[ord("b")], logprobs=(row(ord("b")),)),
        delta("", tokens=[2], finish="stop", logprobs=(row(2),)),
    ]
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [_, message] = post(client, **body).json()["output"]
    assert engine.added.get_nowait().params.logprobs == 2
    shown = message["content"][0]["logprobs"]
    assert [entry["token"] for entry in shown] == ["a", "b"]
    assert [top["token"] for top in shown[0]["top_logprobs"]] == ["a", "z"]
    events = events_of(post(client, stream=True, **body))
    [streamed] = [e for e in events if e["type"] == "response.output_text.delta"]
    assert streamed["logprobs"] == shown
    [done] = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == shown
