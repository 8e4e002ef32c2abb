"""Tools and reasoning over `/v1/chat/completions`, with models that write in each format."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from headway.core.structured import Thoughts
from headway.engine.outputs import NewRequest
from headway.errors import InvalidRequest
from headway.text.tools.formats import FORMATS
from server.fake_engine import PLAIN, FakeEngine, delta
from server.serving import MODEL
from unit.text.conversations import TEMPLATES

QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "What is it like?", "parameters": SCHEMA},
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALLS = [
    {"function": {"name": "weather", "arguments": {"place": "Bonn"}}},
    {"function": {"name": "clock", "arguments": {}}},
]
FORMAT_OF = {
    "tools_hermes": "hermes",
    "tools_llama3": "llama3",
    "tools_mistral": "mistral",
    "tools_mistral_args": "mistral_args",
    "chatml": "json",
}
by_template = pytest.mark.parametrize("template", FORMAT_OF)


def post(client: httpx.Client, **body: Any) -> httpx.Response:
    given = {"messages": QUESTION, "max_tokens": 90} | body
    return client.post("/v1/chat/completions", json=given)


def says(engine: FakeEngine, text: str, *, size: int = 7, finish: str = "stop") -> None:
    """The model answers with that, some characters a step."""
    pieces = [text[place : place + size] for place in range(0, len(text), size)]

    def script(request: NewRequest) -> list[object]:
        return [*(delta(piece) for piece in pieces), delta(finish=finish)]

    engine.script = script


def prompt_of(engine: FakeEngine) -> str:
    return str(engine.model.tokenizer.texts[-1])


@by_template
def test_calls_are_shown_in_openais_shape(
    openai_client: openai.OpenAI, engine: FakeEngine, template: str
) -> None:
    engine.model.set_template(TEMPLATES[template])
    says(engine, FORMATS[FORMAT_OF[template]].written(CALLS))
    answer = openai_client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    first, second = choice.message.tool_calls or ()
    assert first.type == second.type == "function"
    assert (first.function.name, first.function.arguments) == ("weather", '{"place": "Bonn"}')
    assert (second.function.name, second.function.arguments) == ("clock", "{}")
    assert first.id.startswith("call_")
    assert first.id != second.id


@by_template
def test_calls_are_streamed_in_openais_shape(
    client: httpx.Client, engine: FakeEngine, template: str
) -> None:
    engine.model.set_template(TEMPLATES[template])
    says(engine, FORMATS[FORMAT_OF[template]].written(CALLS))
    lines = post(client, tools=TOOLS, stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    begun = [call for call in deltas if "id" in call]
    assert [call["index"] for call in begun] == [0, 1]
    assert [call["function"] for call in begun] == [
        {"name": "weather", "arguments": ""},
        {"name": "clock", "arguments": ""},
    ]
    arguments = ["", ""]
    for call in deltas:
        arguments[call["index"]] += call["function"]["arguments"]
    assert arguments == ['{"place": "Bonn"}', "{}"]
    assert len(deltas) > 5, "arguments come in pieces"
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not any(choice["delta"].get("content") for choice in choices)


def test_openai_python_gathers_streamed_calls(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"])
    says(engine, "I look.\n" + FORMATS["hermes"].written(CALLS))
    with openai_client.chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=TOOLS
    ) as stream:
        [choice] = stream.get_final_completion().choices
    assert choice.message.content == "I look."
    calls = choice.message.tool_calls or ()
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", '{"place": "Bonn"}'),
        ("clock", "{}"),
    ]


@by_template
def test_a_conversation_with_calls_comes_back_as_it_went(
    client: httpx.Client, engine: FakeEngine, template: str
) -> None:
    engine.model.set_template(TEMPLATES[template])
    says(engine, FORMATS[FORMAT_OF[template]].written(CALLS[:1]))
    message = post(client, tools=TOOLS).json()["choices"][0]["message"]
    result = {
        "role": "tool",
        "tool_call_id": message["tool_calls"][0]["id"],
        "content": "It rains.",
    }
    says(engine, "Rain.")
    answer = post(client, messages=[*QUESTION, message, result], tools=TOOLS)
    assert answer.json()["choices"][0]["message"]["content"] == "Rain."
    prompt = prompt_of(engine)
    assert prompt.index('{"place": "Bonn"}') < prompt.index("It rains.")


def test_a_template_without_tools_has_them_in_the_system_message(
    client: httpx.Client, engine: FakeEngine
) -> None:
    post(client, messages=[{"role": "system", "content": "Be brief."}, *QUESTION], tools=TOOLS)
    prompt = prompt_of(engine)
    assert prompt.startswith("<system>Be brief.\n\nYou can call functions.")
    assert json.dumps(WEATHER["function"]) in prompt
    assert prompt.endswith("<user>hi<assistant>")
    post(client, tools=TOOLS)
    assert prompt_of(engine).startswith("<system>You can call functions.")


def test_without_a_format_of_its_own_a_template_gets_calls_as_text_and_results_from_the_user(
    client: httpx.Client, engine: FakeEngine
) -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
        {"id": "2", "type": "function", "function": {"name": "weather", "arguments": '{"a":1}'}},
    ]
    messages = [
        *QUESTION,
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "2", "content": "rain"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "noon"}]},
    ]
    assert post(client, messages=messages).status_code == 200
    written = '{"name": "clock", "arguments": {}}\n{"name": "weather", "arguments": {"a": 1}}'
    assert prompt_of(engine) == (
        f"<user>hi<assistant>I look.\n{written}"
        "<user>The function weather returned:\nrain\n\nThe function clock returned:\nnoon"
        "<assistant>"
    )


def test_the_format_can_be_set_where_the_template_shows_another(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(TEMPLATES["tools_llama3"])
    engine.model.tool_call_parser = "hermes"
    says(engine, FORMATS["hermes"].written(CALLS))
    [choice] = post(client, tools=TOOLS).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 2
    prompt = prompt_of(engine)
    assert "<tool_call>" in prompt, "the system message says so"
    assert "Environment: ipython" not in prompt


@pytest.mark.parametrize(
    ("template", "body", "skipped"),
    [
        (TEMPLATES["tools_mistral"], {"tools": TOOLS}, False),
        (TEMPLATES["tools_mistral"], {"tools": TOOLS, "tool_choice": "none"}, True),
        (TEMPLATES["tools_hermes"], {"tools": TOOLS}, True),
        (PLAIN + "{# </think> #}", {}, False),
        (PLAIN, {}, True),
    ],
)
def test_marks_that_are_special_tokens_reach_what_reads_them(
    client: httpx.Client, engine: FakeEngine, template: str, body: dict[str, Any], skipped: bool
) -> None:
    engine.model.set_template(template)
    marks = ("[TOOL_CALLS]", "[ARGS]", "<think>", "</think>")
    engine.model.tokenizer.special_texts = marks
    assert post(client, **body).status_code == 200
    assert engine.added.get_nowait().params.skip_special_tokens is skipped


@by_template
def test_with_tool_choice_none_nothing_is_said_of_tools_and_nothing_is_a_call(
    client: httpx.Client, engine: FakeEngine, template: str
) -> None:
    engine.model.set_template(TEMPLATES[template])
    text = FORMATS[FORMAT_OF[template]].written(CALLS)
    says(engine, text)
    [choice] = post(client, tools=TOOLS, tool_choice="none").json()["choices"]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    assert "weather" not in prompt_of(engine)
    assert engine.added.get_nowait().params.structured_outputs is None


@pytest.mark.parametrize(
    ("choice", "required", "names"),
    [
        (None, False, ["weather", "clock"]),
        ("auto", False, ["weather", "clock"]),
        ("required", True, ["weather", "clock"]),
        ({"type": "function", "function": {"name": "clock"}}, True, ["clock"]),
    ],
)
def test_the_choice_says_what_the_output_is_held_to(
    client: httpx.Client, engine: FakeEngine, choice: object, required: bool, names: list[str]
) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"])
    post(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    structure = engine.added.get_nowait().params.structured_outputs
    assert structure is not None
    calls = structure.calls
    assert calls is not None
    assert (calls.required, calls.parallel, calls.trigger) == (required, False, "<tool_call>")
    assert [tool.name for tool in calls.tools] == names
    assert json.loads(calls.tools[-1].parameters) == {
        "type": "object",
        "additionalProperties": False,
    }
    assert "weather" in prompt_of(engine), "all tools are told of"


def test_a_tool_may_take_arguments_that_it_does_not_name(
    client: httpx.Client, engine: FakeEngine
) -> None:
    function = {"name": "f", "parameters": {"additionalProperties": {"type": "string"}}}
    post(client, tools=[{"type": "function", "function": function}])
    structure = engine.added.get_nowait().params.structured_outputs
    assert structure is not None
    assert structure.calls is not None
    assert json.loads(structure.calls.tools[0].parameters) == {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }


def test_ids_are_as_long_as_the_template_wants_them(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(TEMPLATES["tools_mistral"])
    function = {"name": "clock", "arguments": "{}"}
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [{"id": "call_of_16_chars", "function": function}]},
        {"role": "tool", "tool_call_id": "call_of_16_chars", "content": "noon"},
    ]
    assert post(client, messages=messages).status_code == 200
    prompt = prompt_of(engine)
    used = prompt.split('"id": "')[1].split('"')[0]
    assert len(used) == 9
    assert prompt.count(used) == 2, "call and result agree"


def test_a_call_that_the_limit_cuts_ends_with_length(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"])
    says(engine, FORMATS["hermes"].written(CALLS)[:50], finish="length")
    [choice] = post(client, tools=TOOLS).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"pl')


def test_every_choice_of_n_has_calls_of_its_own(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"])
    says(engine, FORMATS["hermes"].written(CALLS))
    choices = post(client, tools=TOOLS, n=2).json()["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_a_format_holds_for_the_answer_that_does_not_call(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"])
    as_json = {"type": "json_object"}
    post(client, tools=TOOLS, response_format=as_json)
    structure = engine.added.get_nowait().params.structured_outputs
    assert structure is not None
    assert structure.calls is not None
    assert structure.calls.otherwise is not None
    assert structure.calls.otherwise.kind == "json_object"
    engine.model.set_template(PLAIN)  # its calls are JSON, too
    assert post(client, tools=TOOLS, response_format=as_json).status_code == 400
    for choice in ("none", "required"):
        answer = post(client, tools=TOOLS, response_format=as_json, tool_choice=choice)
        assert answer.status_code == 200


def test_a_schema_that_the_engine_refuses_is_named_as_the_body_calls_it(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.refusal = InvalidRequest("tools[1].parameters", "is no schema")
    answer = post(client, tools=TOOLS)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[1].function.parameters"


def test_the_one_tool_that_must_be_called_keeps_its_place_in_the_body(
    client: httpx.Client, engine: FakeEngine
) -> None:
    post(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "clock"}})
    structure = engine.added.get_nowait().params.structured_outputs
    assert structure is not None
    assert structure.calls is not None
    assert [tool.path for tool in structure.calls.tools] == ["tools[1].parameters"]


def named(name: str, **function: object) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, **function}}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": named("a b")}, "tools[0].function.name"),
        ({"tools": named("")}, "tools[0].function.name"),
        ({"tools": named("a" * 65)}, "tools[0].function.name"),
        ({"tools": [*named("a"), *named("a")]}, "tools[1].function.name"),
        ({"tools": named("a", parameters=[])}, "tools[0].function.parameters"),
        ({"tools": named("a", parameters={"type": "array"})}, "tools[0].function.parameters.type"),
        ({"tools": [named(f"f{n}")[0] for n in range(129)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "b"}}},
            "tool_choice",
        ),
        ({"functions": [{"name": "a"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "["}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "[]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_wrong_with_tools_is_refused_by_name(
    client: httpx.Client, body: dict[str, object], param: str
) -> None:
    response = post(client, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


THINKING = PLAIN + "{# <think></think> #}"
OPENING = PLAIN + (
    "{% if add_generation_prompt and reasoning_effort != 'none' %}<think>\n{% endif %}"
    "{# </think> #}"
)


def test_thoughts_are_reasoning(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template(THINKING)
    says(engine, "<think>\nHm.\n</think>\n\nYes")
    [choice] = post(client).json()["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes",
        "reasoning": "Hm.",
        "refusal": None,
    }


def test_thoughts_that_the_prompt_opens_are_reasoning(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(OPENING)
    says(engine, "Hm.\n</think>\n\nYes")
    [choice] = post(client).json()["choices"]
    assert choice["message"]["reasoning"] == "Hm."
    assert choice["message"]["content"] == "Yes"
    says(engine, "Yes")
    [choice] = post(client, reasoning_effort="none").json()["choices"]
    assert choice["message"]["content"] == "Yes"
    assert "reasoning" not in choice["message"]


@pytest.mark.parametrize(("template", "opened"), [(THINKING, False), (OPENING, True)])
def test_what_the_answer_is_held_to_begins_after_the_thoughts(
    client: httpx.Client, engine: FakeEngine, template: str, opened: bool
) -> None:
    engine.model.set_template(template)
    post(client, response_format={"type": "json_object"})
    structure = engine.added.get_nowait().params.structured_outputs
    assert structure is not None
    assert structure.thoughts == Thoughts(opener="<think>", closer="</think>", opened=opened)


def test_where_there_are_no_thoughts_nothing_may_come_before_the_answer(
    client: httpx.Client, engine: FakeEngine
) -> None:
    closing = "{% if reasoning_effort == 'none' %}<think>\n\n</think>\n\n{% endif %}"
    for template, effort in ((PLAIN, None), (PLAIN + closing, "none")):
        engine.model.set_template(template)
        post(client, response_format={"type": "json_object"}, reasoning_effort=effort)
        structure = engine.added.get_nowait().params.structured_outputs
        assert structure is not None
        assert structure.thoughts is None


def test_thoughts_are_streamed_apart(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template(THINKING)
    says(engine, "<think>\nHm, so.\n</think>\n\nYes", size=3)
    lines = post(client, stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm, so."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes"


def test_an_answer_that_is_thought_alone_has_no_content(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(THINKING)
    says(engine, "<think>Hm", finish="length")
    [choice] = post(client).json()["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"] == "Hm"


def test_calls_come_after_thoughts(client: httpx.Client, engine: FakeEngine) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"] + "{# <think></think> #}")
    thought = "I could <tool_call> the clock"
    says(engine, f"<think>{thought}</think>\n" + FORMATS["hermes"].written(CALLS))
    [choice] = post(client, tools=TOOLS).json()["choices"]
    assert choice["message"]["reasoning"] == thought
    assert len(choice["message"]["tool_calls"]) == 2


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thoughts_may_come_back_in_the_history(
    client: httpx.Client, engine: FakeEngine, field: str
) -> None:
    engine.model.set_template("{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}")
    said = {"role": "assistant", "content": "Yes", field: "Hm."}
    assert post(client, messages=[*QUESTION, said, *QUESTION]).status_code == 200
    assert prompt_of(engine) == "|Hm.||"
