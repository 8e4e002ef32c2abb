from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from headway.core.structured import StructuredOutputs
from headway.errors import EngineDead, InvalidRequest, QueueFull, RequestTooLarge
from headway.server.api import messages
from headway.server.api.conversation import Tool, ToolChoice
from server.fake_engine import FakeEngine
from server.parted import PROMPT, Asked, asked, everything
from server.serving import MODEL

QUESTION: list[Any] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"name": "weather", "description": "Outside.", "input_schema": SCHEMA}


@pytest.fixture(name="asked", autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return asked(messages, monkeypatch)


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/messages", json={"max_tokens": 50, "messages": QUESTION} | body)


USE: Any = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "t1", "content": "hot"}
CALLED = {
    "id": "t1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Oslo"}},
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (QUESTION, QUESTION),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "b"},
                    ],
                },
                {"role": "user", "content": "c"},
            ],
            [{"role": "user", "content": "a\nb\nc"}],
        ),
        (
            [
                *QUESTION,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "Let me see."},
                        USE,
                        USE | {"id": "t2"},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        RESULT,
                        {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                        {"type": "text", "text": "And?"},
                    ],
                },
            ],
            [
                *QUESTION,
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "reasoning": "hm",
                    "tool_calls": [CALLED, CALLED | {"id": "t2"}],
                },
                {"role": "tool", "tool_call_id": "t1", "content": "hot"},
                {"role": "tool", "tool_call_id": "t2", "content": "Error: "},
                {"role": "user", "content": "And?"},
            ],
        ),
        (
            [{"role": "system", "content": "be brief"}, *QUESTION],
            [{"role": "system", "content": "be brief"}, *QUESTION],
        ),
        ([{"role": "user", "content": []}], [{"role": "user", "content": ""}]),
    ],
)
def test_blocks_become_turns(
    client: httpx.Client, asked: Asked, given: object, expected: object
) -> None:
    assert post(client, messages=given).status_code == 200
    assert asked.conversations[-1].messages == expected


@pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be brief"}]])
def test_the_system_prompt_comes_first(client: httpx.Client, asked: Asked, system: object) -> None:
    post(client, system=system)
    assert asked.conversations[-1].messages[0] == {"role": "system", "content": "be brief"}


def test_an_answer_goes_on_where_the_assistants_turn_ends(
    client: httpx.Client, asked: Asked
) -> None:
    post(client, messages=[*QUESTION, {"role": "assistant", "content": "The"}])
    post(client)
    begun, fresh = asked.conversations
    assert (begun.continue_final_message, begun.add_generation_prompt) == (True, False)
    assert (fresh.continue_final_message, fresh.add_generation_prompt) == (False, True)


def test_an_answer_can_be_sent_back_as_it_came(
    claude: anthropic.Anthropic, engine: FakeEngine, asked: Asked
) -> None:
    engine.script = everything
    answer = claude.messages.create(model=MODEL, max_tokens=50, messages=QUESTION)
    call = answer.content[2]
    assert call.type == "tool_use"
    turns: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [RESULT | {"tool_use_id": call.id}]},
    ]
    claude.messages.create(model=MODEL, max_tokens=50, messages=turns)
    said = asked.conversations[-1].messages[1]
    assert (said["content"], said["reasoning"]) == ("Let me see.", "It is hot.")
    assert said["tool_calls"][0]["function"] == CALLED["function"]


@pytest.mark.parametrize(
    ("given", "choice", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "none"}, ToolChoice("none"), True),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required"), False),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", "weather"), True),
    ],
)
def test_tools_reach_the_conversation(
    client: httpx.Client, asked: Asked, given: object, choice: ToolChoice, parallel: bool
) -> None:
    post(client, tools=[WEATHER | {"type": "custom", "strict": True}], tool_choice=given)
    [conversation] = asked.conversations
    assert conversation.tools == [
        Tool(name="weather", description="Outside.", parameters=SCHEMA, strict=True)
    ]
    assert conversation.tool_choice == choice
    assert conversation.parallel_tool_calls is parallel


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        ({"type": "enabled", "budget_tokens": 20}, {"enable_thinking": True}),
    ],
)
def test_thinking_is_asked_of_the_template(
    client: httpx.Client, asked: Asked, thinking: object, variables: object
) -> None:
    post(client, thinking=thinking, output_config={"effort": "low"})
    [conversation] = asked.conversations
    assert conversation.template_kwargs == variables
    assert conversation.reasoning_effort == "low"


def test_sampling_is_as_asked(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.sampling_defaults = {"temperature": 0.5, "top_p": 0.8}
    post(client, temperature=0.25, top_k=3, stop_sequences=["x"], max_tokens=0)
    params = engine.added.get_nowait().params
    assert (params.temperature, params.top_p, params.top_k) == (0.25, 0.8, 3)
    assert (params.stop, params.max_tokens) == (("x",), 0)


def test_when_it_is_served_may_be_said(client: httpx.Client, engine: FakeEngine) -> None:
    post(client, priority=-2, cache_salt="mine", deadline_ms=500, queue_timeout_ms=1500)
    request = engine.added.get_nowait()
    assert (request.priority, request.cache_salt) == (-2, "mine")
    assert (request.deadline_s, request.queue_timeout_s) == (0.5, 1.5)


def test_a_format_holds_the_output_to_it(client: httpx.Client, engine: FakeEngine) -> None:
    post(client, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    structure = engine.added.get_nowait().params.structured_outputs
    assert structure == StructuredOutputs(json=SCHEMA)


def test_tokens_are_counted_without_the_engine(
    claude: anthropic.Anthropic, client: httpx.Client, engine: FakeEngine
) -> None:
    count = claude.messages.count_tokens(
        model=MODEL, messages=QUESTION, system="be brief", tools=[WEATHER]
    )
    assert count.input_tokens == len(PROMPT)
    assert engine.added.empty()
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model="another", messages=QUESTION)
    body = {"messages": QUESTION, "priority": 1}
    error = client.post("/v1/messages/count_tokens", json=body).json()["error"]
    assert error["message"] == "priority: 1 is not supported (only null)"


@pytest.mark.parametrize(
    "field",
    [
        {"service_tier": "auto"},
        {"cache_control": {"type": "ephemeral"}},
        {"metadata": None},
        {"metadata": {"user_id": None}},
        {"container": None},
        {"speed": "standard"},
        {"tools": [WEATHER | {"cache_control": {"type": "ephemeral"}}]},
    ],
)
def test_what_asks_for_nothing_is_taken(client: httpx.Client, field: dict[str, object]) -> None:
    assert post(client, **field).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "assistant", "content": [RESULT]}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [RESULT | {"content": [{"type": "image"}]}]}
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"system": 3}, "system"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER | {"input_examples": []}]}, "tools[0].input_examples"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"schema": {}}}}, "output_config.format.type"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"container": "c"}, "container"),
        ({"queue_timeout_ms": 0}, "queue_timeout_ms"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_wrong_is_named(client: httpx.Client, body: dict[str, object], param: str) -> None:
    response = post(client, **body)
    assert response.status_code == 400
    answer = response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert answer["error"]["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("messages[0].content", "system.content"),
        ("messages[2].content", "messages[1].content[0].content"),
        ("tools[0].parameters.type", "tools[0].input_schema.type"),
        ("chat_template_kwargs", "thinking"),
    ],
)
def test_what_the_template_refuses_is_named_as_the_client_wrote_it(
    client: httpx.Client, asked: Asked, field: str, param: str
) -> None:
    asked.error = InvalidRequest(field, "is odd")
    turns = [*QUESTION, {"role": "user", "content": [RESULT]}]
    error = post(client, system="x", messages=turns, tools=[WEATHER]).json()["error"]
    # Turns of one role are one: the result begins the second.
    assert error["message"] == f"{param}: is odd"


@pytest.mark.parametrize(
    ("field", "param"), [("prompt", "messages"), ("stop", "stop_sequences"), ("top_p", "top_p")]
)
def test_what_the_engine_refuses_is_named_as_the_client_wrote_it(
    client: httpx.Client, engine: FakeEngine, field: str, param: str
) -> None:
    engine.refusal = RequestTooLarge(field, "is too much")
    assert post(client).json()["error"]["message"] == f"{param}: is too much"


def test_errors_are_the_clients_exceptions(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    def create(**body: Any) -> object:
        given = {"model": MODEL, "max_tokens": 9, "messages": QUESTION} | body
        return claude.messages.create(**given)

    with pytest.raises(anthropic.BadRequestError, match="max_tokens: must be at least 0"):
        create(max_tokens=-1)
    with pytest.raises(anthropic.NotFoundError, match="is not served here") as unknown:
        create(model="another")
    assert unknown.value.type == "not_found_error"
    engine.full = QueueFull("3 requests are waiting", 2.0)
    with pytest.raises(anthropic.RateLimitError, match="3 requests are waiting") as full:
        create()
    assert full.value.type == "rate_limit_error"
    assert full.value.response.headers["Retry-After"] == "2"
    engine.full = EngineDead("the engine has stopped")
    with pytest.raises(anthropic.OverloadedError) as dead:
        create()
    assert (dead.value.status_code, dead.value.type) == (529, "overloaded_error")
    engine.full = RuntimeError("a mistake")
    with pytest.raises(anthropic.InternalServerError) as failed:
        create()
    assert failed.value.type == "api_error"


def test_the_wrong_method_is_said_in_anthropics_shape(client: httpx.Client) -> None:
    response = client.get("/v1/messages")
    assert response.status_code == 405
    assert response.json()["error"]["type"] == "invalid_request_error"
