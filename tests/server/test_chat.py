from __future__ import annotations

import json

import httpx
import openai
import pytest

from server.fake_engine import PLAIN, FakeEngine, delta
from server.serving import MODEL

QUESTION = [{"role": "user", "content": "hi"}]


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": QUESTION} | body)


def chunks_of(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_answer_has_openais_shape(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta("Yes", finish="stop", stop_reason=2, cached=1)]
    answer = post(client).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    prompt_tokens = len("<user>hi<assistant>")
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Yes", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": 2,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_the_template_alone_writes_the_special_tokens(
    client: httpx.Client, engine: FakeEngine
) -> None:
    post(client, messages=[{"role": "system", "content": "be brief"}, *QUESTION])
    text = "<system>be brief<user>hi<assistant>"
    assert engine.added.get_nowait().prompt_token_ids == list(map(ord, text))


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_roles_reach_the_template_as_they_are(
    client: httpx.Client, engine: FakeEngine, role: str
) -> None:
    post(client, messages=[{"role": role, "content": "hi"}])
    assert engine.model.tokenizer.texts == [f"<{role}>hi<assistant>"]


@pytest.mark.parametrize(
    ("template", "role"), [(PLAIN, "system"), (PLAIN + "{# developer #}", "developer")]
)
def test_what_a_developer_says_is_said_by_the_system_where_the_template_knows_no_developer(
    client: httpx.Client, engine: FakeEngine, template: str, role: str
) -> None:
    engine.model.set_template(template)
    post(client, messages=[{"role": "developer", "content": "hi"}])
    assert engine.model.tokenizer.texts == [f"<{role}>hi<assistant>"]


def test_text_parts_and_names_reach_the_template(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template("{{ messages[0].name }}: {{ messages[0].content }}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts, "name": "Ada"}]
    assert post(client, messages=messages).status_code == 200
    assert engine.model.tokenizer.texts == ["Ada: a\nb"]


def test_variables_reach_the_template(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template(
        "{{ mode }} {{ reasoning_effort }} {{ enable_thinking }} {{ add_generation_prompt }}"
    )
    post(client, chat_template_kwargs={"mode": "m"}, reasoning_effort="none")
    post(client, chat_template_kwargs={"enable_thinking": True}, reasoning_effort="none")
    post(client, reasoning_effort="high", add_generation_prompt=False)
    assert engine.model.tokenizer.texts == [
        "m none False True",
        " none True True",
        " high  False",
    ]


def test_the_final_message_can_be_continued(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}"
    )
    messages = [*QUESTION, {"role": "assistant", "content": "Well, "}]
    assert post(client, messages=messages, continue_final_message=True).status_code == 200
    assert engine.model.tokenizer.texts == ["<user>hi<end><assistant>Well, "]


def test_the_answer_may_be_held_to_a_format(client: httpx.Client, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    json_schema = {"name": "thing", "strict": True, "schema": schema}
    post(client, response_format={"type": "json_schema", "json_schema": json_schema})
    post(client, response_format={"type": "json_object"})
    post(client, structured_outputs={"choice": ["yes", "no"]})
    asked = [engine.added.get_nowait().params.structured_outputs for _ in range(3)]
    assert all(structure is not None for structure in asked)
    assert [structure.kind for structure in asked if structure] == ["json", "json_object", "choice"]


def test_an_answer_can_be_sent_back_as_it_came(
    client: httpx.Client, openai_client: openai.OpenAI
) -> None:
    answer = openai_client.chat.completions.create(model=MODEL, messages=QUESTION)
    message = answer.choices[0].message.model_dump()
    assert post(client, messages=[*QUESTION, message, *QUESTION]).status_code == 200


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
    ],
)
def test_the_limit_is_what_the_context_leaves_unless_given(
    client: httpx.Client,
    engine: FakeEngine,
    limits: dict[str, int],
    expected: int | None,
) -> None:
    post(client, **limits)
    assert engine.added.get_nowait().params.max_tokens == expected


def test_two_limits_that_differ_are_refused(client: httpx.Client) -> None:
    response = post(client, max_tokens=3, max_completion_tokens=4)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_completion_tokens"


def test_a_bad_limit_is_named_as_the_client_wrote_it(client: httpx.Client) -> None:
    error = post(client, max_completion_tokens=-1).json()["error"]
    assert error["param"] == "max_completion_tokens"
    assert error["message"] == "max_completion_tokens: must be at least 0, not -1"


def test_a_stream_opens_with_the_role(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta("a"), delta("b"), delta(tokens=[9], finish="stop")]
    chunks = chunks_of(post(client, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


def test_openai_python_reads_a_stream_with_usage(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("Par", cached=2), delta("is", finish="stop", cached=2)]
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == "Paris"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 5
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_a_model_without_chat_template_says_so(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.chat_template = None
    response = post(client)
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": 0},
        {"modalities": ["text"]},
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}},
        {"metadata": {"a": "b"}, "service_tier": "auto", "store": True, "verbosity": "low"},
    ],
)
def test_what_asks_for_nothing_is_accepted(
    client: httpx.Client, neutral: dict[str, object]
) -> None:
    assert post(client, **neutral).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"reasoning_effort": "vast"}, "reasoning_effort"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"a": "x" * 70_000}}, "chat_template_kwargs"),
        ({"echo": True}, "echo"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {
                "messages": [{"role": "assistant", "content": "a"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "1"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": "1", "tool_call_id": "a"}]},
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": "1", "reasoning": "a"}]},
            "messages[0].reasoning",
        ),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [*QUESTION, {"role": "user"}]}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: httpx.Client, body: dict[str, object], param: str
) -> None:
    response = post(client, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
