"""LiteLLM, by its prefixes for OpenAI's API, for vLLM's, and for Anthropic's."""

from __future__ import annotations

import asyncio
import json

import litellm
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]


@pytest.fixture(params=["openai", "hosted_vllm"])
def asked(request: pytest.FixtureRequest, server_url: str, model_name: str) -> dict[str, object]:
    return {
        "model": f"{request.param}/{model_name}",
        "api_base": f"{server_url}/v1",
        "api_key": "none",
        "temperature": 0,
        "num_retries": 0,
    }


def test_a_chat_and_its_stream_are_one_text(asked: dict[str, object]) -> None:
    whole = litellm.completion(messages=QUESTION, **asked)
    text = whole.choices[0].message.content
    assert "Tokyo" in text
    assert whole.usage.prompt_tokens > 0
    chunks = list(litellm.completion(messages=QUESTION, stream=True, **asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    answer = asyncio.run(litellm.acompletion(messages=QUESTION, **asked))
    assert answer.choices[0].message.content == text


def test_a_completion(server_url: str, model_name: str) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{model_name}",
        api_base=f"{server_url}/v1",
        api_key="none",
        prompt="The capital of France is",
        temperature=0,
        max_tokens=8,
    )
    assert answer.choices[0].text.startswith(" Paris")


def test_a_schema_and_a_tool(asked: dict[str, object]) -> None:
    schema = {
        "type": "object",
        "properties": {"island": {"type": "boolean"}},
        "required": ["island"],
        "additionalProperties": False,
    }
    answer = litellm.completion(
        messages=[{"role": "user", "content": "Is Japan an island? Answer as JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        **asked,
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["island"], bool)
    function = {"name": "tell", "description": "Tell it", "parameters": schema}
    answer = litellm.completion(
        messages=QUESTION,
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        **asked,
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "tell"
    assert isinstance(json.loads(call.function.arguments)["island"], bool)


def test_anthropics_api(server_url: str, model_name: str) -> None:
    answer = litellm.completion(
        model=f"anthropic/{model_name}",
        api_base=server_url,
        api_key="none",
        messages=QUESTION,
        max_tokens=64,
        temperature=0,
    )
    assert "Tokyo" in answer.choices[0].message.content


def test_an_error_is_the_clients_own_class(asked: dict[str, object]) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=QUESTION, **asked | {"temperature": -1})
