from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from headway.server.api import messages
from server.fake_engine import HANG, FakeEngine, delta
from server.parted import PROMPT, Asked, asked, everything
from server.serving import MODEL, TIMEOUT_S

EVENT = TypeAdapter[Any](RawMessageStreamEvent)
QUESTION: list[Any] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"name": "weather", "description": "Outside.", "input_schema": SCHEMA}


@pytest.fixture(name="asked", autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return asked(messages, monkeypatch)


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/messages", json={"max_tokens": 50, "messages": QUESTION} | body)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events, each of which is named as its type is, and what anthropic-python expects."""
    events = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        events.append(event)
    return events


def test_an_answer_has_anthropics_shape(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta("Yes", finish="stop", cached=4)]
    answer = post(client, metadata={"user_id": "Ada"}).json()
    Message.model_validate(answer)
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Yes", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "output_tokens": 3,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    request = engine.added.get_nowait()
    assert request.tenant == "Ada"
    assert request.params.max_tokens == 50
    assert tuple(request.prompt_token_ids) == PROMPT


def test_thoughts_text_and_calls_are_blocks(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = everything
    answer = claude.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, tools=[WEATHER])
    thought, text, call = answer.content
    assert thought.type == "thinking"
    assert thought.thinking == "It is hot."
    assert text.type == "text"
    assert text.text == "Let me see."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("weather", {"city": "Oslo"})
    assert answer.stop_reason == "tool_use"
    assert answer.usage.output_tokens_details is not None
    assert answer.usage.output_tokens_details.thinking_tokens == 3


def test_a_streams_events_are_in_anthropics_order(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = everything
    events = events_of(post(client, stream=True))
    block = ["content_block_start", *["content_block_delta"] * 2, "content_block_stop"]
    assert [(event["type"], event.get("index")) for event in events] == [
        ("message_start", None),
        ("ping", None),
        *((kind, index) for index in range(3) for kind in block),
        ("message_delta", None),
        ("message_stop", None),
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [kind["type"] for kind in deltas] == [
        *["thinking_delta"] * 2,
        *["text_delta"] * 2,
        *["input_json_delta"] * 2,
    ]
    begun = events[0]["message"]
    assert (begun["content"], begun["stop_reason"]) == ([], None)
    assert begun["usage"]["input_tokens"] == 6
    assert begun["usage"]["cache_read_input_tokens"] == 4
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 9


def test_a_stream_comes_to_what_an_answer_in_one_piece_is(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = everything
    with claude.messages.stream(model=MODEL, max_tokens=50, messages=QUESTION) as stream:
        seen = list(stream)
        streamed = stream.get_final_message()
    assert [event.text for event in seen if event.type == "text"] == ["Let me ", "see."]
    whole = claude.messages.create(model=MODEL, max_tokens=50, messages=QUESTION)
    for mine, other in zip(streamed.content, whole.content, strict=True):
        ids = {"id", "parsed_output"}
        assert mine.model_dump(exclude=ids) == other.model_dump(exclude=ids)
    assert streamed.usage == whole.usage
    assert streamed.stop_reason == whole.stop_reason


def test_the_asynchronous_client_streams_too(
    engine: FakeEngine, fake_server: tuple[FakeEngine, str]
) -> None:
    engine.script = everything

    async def text() -> str:
        async with (
            anthropic.AsyncAnthropic(
                base_url=fake_server[1], api_key="none", timeout=TIMEOUT_S
            ) as client,
            client.messages.stream(model=MODEL, max_tokens=50, messages=QUESTION) as stream,
        ):
            return await stream.get_final_text()

    assert asyncio.run(text()) == "Let me see."


@pytest.mark.parametrize(
    ("last", "limit", "expected"),
    [
        (delta("b", finish="stop"), 50, ("end_turn", None)),
        (delta("b", finish="stop", stop_reason="\n\n"), 50, ("stop_sequence", "\n\n")),
        (delta("b", finish="length"), 2, ("max_tokens", None)),
        (delta("b", finish="length"), 50, ("model_context_window_exceeded", None)),
        (delta("call:f", finish="stop"), 50, ("tool_use", None)),
    ],
)
def test_it_says_why_it_stopped(
    client: httpx.Client,
    engine: FakeEngine,
    last: object,
    limit: int,
    expected: tuple[str, str | None],
) -> None:
    engine.script = lambda request: [delta("a"), last]
    answer = post(client, max_tokens=limit).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected
    [told] = [
        event["delta"]
        for event in events_of(post(client, max_tokens=limit, stream=True))
        if event["type"] == "message_delta"
    ]
    assert (told["stop_reason"], told["stop_sequence"]) == expected


def test_a_call_that_the_limit_cut_has_no_input(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta("call:f"), delta('args:{"a', finish="length")]
    answer = post(client).json()
    assert answer["content"][0]["input"] == {}


def test_an_empty_answer_has_no_blocks(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta(tokens=[2], finish="stop")]
    assert post(client).json()["content"] == []
    kinds = [event["type"] for event in events_of(post(client, stream=True))]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_a_stream_that_breaks_off_says_why(
    client: httpx.Client, claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), delta(finish="error", error="NaN logits")]
    assert events_of(post(client, stream=True))[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "NaN logits"},
    }
    with (
        pytest.raises(anthropic.APIStatusError, match="NaN logits"),
        claude.messages.stream(model=MODEL, max_tokens=50, messages=QUESTION) as stream,
    ):
        stream.until_done()


def test_a_client_that_goes_away_ends_its_request(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), HANG]
    with claude.messages.create(
        model=MODEL, max_tokens=50, messages=QUESTION, stream=True
    ) as stream:
        next(iter(stream))
    assert engine.aborted.get(timeout=TIMEOUT_S).startswith("msg_")
