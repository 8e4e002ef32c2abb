"""Chat templates of the known families, against Jinja2 as Transformers sets it up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headway.text.chat_template import ChatTemplate
from unit.text.conversations import CONVERSATIONS, NOW, TEMPLATES, TOOLS, plain_jinja, turn

MARKS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, messages: Any, **variables: Any) -> str:
    return ChatTemplate(source, **MARKS, now=lambda: NOW).render(messages, **variables)


@pytest.mark.parametrize("variables", [{}, {"tools": TOOLS, "xml_tools": TOOLS}], ids=["", "tools"])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_familys_template_gives_what_jinja_gives(
    name: str, messages: Any, variables: dict[str, Any]
) -> None:
    template = ChatTemplate(TEMPLATES[name], **MARKS, now=lambda: NOW)
    for opens in (True, False):
        given = {**variables, "add_generation_prompt": opens}
        wanted = plain_jinja(TEMPLATES[name], {"messages": messages, **MARKS, **given})
        assert template.render(messages, **given) == wanted


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
def test_a_long_conversation_renders_at_once(source: str) -> None:
    text = "Words of the world, 2 kB. " * 80
    messages = [turn(("user", "assistant")[index % 2], text) for index in range(1000)]
    start = time.process_time()
    assert len(render(source, messages)) > 2_000_000
    assert time.process_time() - start < 2  # some 30 ms are usual


def test_many_short_messages_render() -> None:
    messages = [turn(("user", "assistant")[index % 2], "so") for index in range(5000)]
    for source in TEMPLATES.values():
        assert len(render(source, messages)) > 10_000
