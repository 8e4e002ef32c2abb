"""Tools with the default model, a real server and openai-python; and the guide's example."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "tools.md").read_text(encoding="utf-8")
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        },
        "required": ["city", "unit", "days"],
    },
    "add": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def checked(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name] | {"additionalProperties": False})


def test_required_calls_are_valid_however_they_are_sampled(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1,
        seed=1,
        n=2,
        max_tokens=100,
    )
    complete = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
    assert complete
    for choice in complete:
        [call] = choice.message.tool_calls or ()
        assert choice.message.content is None
        checked(call.function.name, call.function.arguments)


def test_a_named_tool_is_streamed_as_it_is_answered(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 60,
    }
    [whole] = client.chat.completions.create(**asked).choices
    with client.chat.completions.stream(**asked) as stream:
        [streamed] = stream.get_final_completion().choices
    [call], [same] = whole.message.tool_calls or (), streamed.message.tool_calls or ()
    checked("add", call.function.arguments)
    assert (same.function.name, same.function.arguments) == ("add", call.function.arguments)
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"


def test_a_schema_that_is_wrong_is_named(client: openai.OpenAI) -> None:
    wrong = {"name": "wrong", "parameters": {"properties": {"a": {"pattern": "("}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=[*TOOLS, {"type": "function", "function": wrong}]
        )
    assert caught.value.param == "tools[2].function.parameters"


def test_the_guides_example(capsys: pytest.CaptureFixture[str], server_url: str) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert "http://127.0.0.1:8000" in example
    code = example.replace("http://127.0.0.1:8000", server_url) + "\nclient.close()\n"
    # In a thread of its own: an example may leave what the interpreter's end would collect.
    thread = threading.Thread(target=exec, args=(compile(code, "tools.md", "exec"), {}))
    thread.start()
    thread.join()
    assert "get_weather {'city': 'Paris'}" in capsys.readouterr().out
