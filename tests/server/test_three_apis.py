"""What all APIs with messages have in common: one conversation, whatever it comes in."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headway.text.tools.formats import FORMATS
from server.fake_engine import FakeEngine, delta
from unit.text.conversations import TEMPLATES

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
ABOUT = {"name": "weather", "description": "What is it like?"}
ARGUMENTS = '{"place": "Bonn"}'

CHAT: dict[str, Any] = {
    "tools": [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Bonn?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": ARGUMENTS},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ],
}
RESPONSES: dict[str, Any] = {
    "tools": [{"type": "function", **ABOUT, "parameters": SCHEMA}],
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Bonn?"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "weather",
            "arguments": ARGUMENTS,
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
    ],
}
MESSAGES: dict[str, Any] = {
    "max_tokens": 90,
    "tools": [{**ABOUT, "input_schema": SCHEMA}],
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Bonn?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"place": "Bonn"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "Rain."}],
        },
    ],
}
BODIES = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES}


@pytest.mark.parametrize("template", ["tools_hermes", "tools_llama3", "tools_mistral", "chatml"])
def test_one_conversation_is_one_prompt(
    client: httpx.Client, engine: FakeEngine, template: str
) -> None:
    engine.model.set_template(TEMPLATES[template])
    prompts = []
    for path, body in BODIES.items():
        assert client.post(path, json=body).status_code == 200
        request = engine.added.get_nowait()
        prompts.append("".join(map(chr, request.prompt_token_ids)))
        assert request.params.structured_outputs is not None
    assert "Rain." in prompts[0]
    assert len(set(prompts)) == 1


def test_what_a_model_writes_is_taken_apart_for_each(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.set_template(TEMPLATES["tools_hermes"])
    written = FORMATS["hermes"].written(
        [{"function": {"name": "weather", "arguments": {"place": "Bonn"}}}]
    )
    engine.script = lambda request: [delta("I look.\n"), delta(written), delta(finish="stop")]
    answers = {path: client.post(path, json=body).json() for path, body in BODIES.items()}
    [choice] = answers["/v1/chat/completions"]["choices"]
    assert choice["message"]["content"].strip() == "I look."
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    message, call = answers["/v1/responses"]["output"]
    assert message["content"][0]["text"].strip() == "I look."
    assert (call["name"], call["arguments"]) == ("weather", ARGUMENTS)
    text, use = answers["/v1/messages"]["content"]
    assert text["text"].strip() == "I look."
    assert (use["name"], use["input"]) == ("weather", {"place": "Bonn"})
