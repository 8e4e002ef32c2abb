"""LangChain's ChatOpenAI."""

from __future__ import annotations

import pydantic
import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

ASKED = [SystemMessage("You are terse."), HumanMessage("What is the capital of Japan?")]


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture
def llm(server_url: str, model_name: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{server_url}/v1", model=model_name, temperature=0, max_retries=0, max_tokens=128
    )


def test_invoke_stream_and_batch_are_one_text(llm: ChatOpenAI) -> None:
    answer = llm.invoke(ASKED)
    assert "Tokyo" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    assert "".join(chunk.content for chunk in llm.stream(ASKED)) == answer.content
    assert [each.content for each in llm.batch([ASKED, ASKED])] == [answer.content] * 2


def test_tools(llm: ChatOpenAI) -> None:
    bound = llm.bind_tools([get_weather], tool_choice="get_weather")
    question = HumanMessage("What is the weather in Paris?")
    answer = bound.invoke([question])
    (call,) = answer.tool_calls
    assert (call["name"], list(call["args"])) == ("get_weather", ["city"])
    merged = None
    for chunk in bound.stream([question]):
        merged = chunk if merged is None else merged + chunk
    assert merged.tool_calls[0]["args"] == call["args"]
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert llm.invoke([question, answer, result]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(llm: ChatOpenAI, method: str) -> None:
    question = "Ada is 36 years old. Give her name and age as JSON with the keys name and age."
    structured = llm.with_structured_output(Person, method=method, include_raw=True)
    answer = structured.invoke(question)
    if method == "json_mode":  # which promises JSON, and not the keys
        assert answer["raw"].content.lstrip().startswith("{")
    else:
        assert isinstance(answer["parsed"], Person), answer


def test_the_responses_api(server_url: str, model_name: str) -> None:
    llm = ChatOpenAI(
        base_url=f"{server_url}/v1", model=model_name, temperature=0, use_responses_api=True
    )
    assert "Tokyo" in llm.invoke(ASKED).text


def test_completions(server_url: str, model_name: str) -> None:
    llm = OpenAI(base_url=f"{server_url}/v1", model=model_name, temperature=0, max_tokens=8)
    text = llm.invoke("The capital of France is")
    assert text.startswith(" Paris")
    assert "".join(llm.stream("The capital of France is")) == text
