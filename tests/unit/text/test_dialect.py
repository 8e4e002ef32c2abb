"""What is read off a chat template."""

from __future__ import annotations

import pytest

from headway.text.chat_template import ChatTemplate, UnusableTemplate
from headway.text.dialect import Dialect
from headway.text.tools.formats import FORMATS
from unit.text.conversations import NOW, TEMPLATES


def dialect(source: str) -> Dialect:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: NOW).dialect


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_go_through_a_template_that_takes_them_in_a_known_format(name: str) -> None:
    assert dialect(TEMPLATES[name]).takes_tools == name.startswith("tools_")


def test_a_template_that_names_tools_and_shows_none_takes_none() -> None:
    source = "{% if false %}{{ tools }}<tool_call>{% endif %}{{ messages[0].content }}"
    assert not dialect(source).takes_tools
    assert not dialect("<tool_call>{{ raise_exception('no') }}").takes_tools


def test_another_format_is_not_the_templates() -> None:
    own = dialect(TEMPLATES["tools_hermes"])
    assert own.speaking(FORMATS["hermes"]) == own
    other = own.speaking(FORMATS["mistral"])
    assert (other.calls.name, other.takes_tools) == ("mistral", False)


def test_marks_are_what_may_be_special_tokens() -> None:
    marks = {name: form.marks for name, form in FORMATS.items()}
    assert marks == {
        "hermes": ["<tool_call>", "</tool_call>"],
        "llama3": [],
        "mistral": ["[TOOL_CALLS]"],
        "mistral_args": ["[TOOL_CALLS]", "[ARGS]"],
        "json": [],
    }


def test_a_template_that_is_not_usable_has_no_dialect_of_its_own() -> None:
    assert UnusableTemplate("broken").dialect.calls.name == "json"
