from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headway.errors import InvalidRequest, ModelError
from headway.text.chat_template import ChatTemplate, UnusableTemplate, template_of

USER = [{"role": "user", "content": "hi"}]
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def template(source: str, **more: Any) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **more)


def test_messages_are_laid_out_as_the_template_says() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    assert template(PLAIN).render(messages) == "[system]Be brief.[user]hi"


def test_the_generation_prompt_is_asked_for_by_default() -> None:
    source = PLAIN + "{% if add_generation_prompt %}[assistant]{% endif %}"
    assert template(source).render(USER) == "[user]hi[assistant]"
    assert template(source).render(USER, add_generation_prompt=False) == "[user]hi"


def test_bos_and_eos_are_known_to_the_template_and_empty_where_there_are_none() -> None:
    source = "{{ bos_token }}|{{ eos_token }}"
    assert template(source).render(USER) == "<s>|</s>"
    assert ChatTemplate(source, bos_token=None, eos_token=None).render(USER) == "|"


def test_further_variables_reach_the_template() -> None:
    assert template("{{ tools[0] }} {{ missing }}.").render(USER, tools=["f"]) == "f ."


def test_tools_that_are_not_given_are_none_and_not_undefined() -> None:
    source = "{{ tools is none }} {{ documents is none }} {{ tools is defined }}"
    assert template(source).render(USER) == "True True True"


def test_lines_of_blocks_leave_no_line_ends_and_no_indent() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert template(source).render(USER) == "hi\n"


def test_loops_may_be_left() -> None:
    source = "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}"
    assert template(source).render([*USER, *USER]) == "hi"


def test_json_is_not_escaped_for_html() -> None:
    source = "{{ messages[0].content | tojson }}{{ {'b': [1], 'a': 2} | tojson(indent=1) }}"
    text = template(source).render([{"role": "user", "content": "<é & '\">"}])
    assert text == '"<é & \'\\">"{\n "b": [\n  1\n ],\n "a": 2\n}'


def test_the_time_comes_from_the_clock_that_is_passed_in() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    clock = template(source, now=lambda: datetime(2031, 5, 4))
    assert clock.render(USER) == "04 May 2031"


def test_text_parts_are_joined_by_line_ends() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template(PLAIN).render([{"role": "user", "content": parts}]) == "[user]one\ntwo"


def test_other_keys_of_a_message_reach_the_template_and_the_caller_keeps_his_own() -> None:
    message = {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "x"}]}
    assert template("{{ messages[0].name }}").render([message]) == "Ada"
    assert message["content"] == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("hi", "messages[1]"),
        ({"content": "hi"}, "messages[1].role"),
        ({"role": 1, "content": "hi"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 7}, "messages[1].content"),
        ({"role": "user", "content": ["hi"]}, "messages[1].content[0]"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[1].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
    ],
)
def test_a_message_of_another_form_is_refused_by_the_field(message: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(PLAIN).render([*USER, message])
    assert caught.value.field == field


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        template(PLAIN).render([])


def test_what_the_template_raises_is_the_callers_error_in_its_words() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequest, match="messages: the chat template says: roles must alt"):
        template(source).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].absent.more }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_failing_template_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="messages: the chat template says"):
        template(source).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}",
        "{% for n in range(10000001) %}{% endfor %}",
        "{% for a in range(10000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
    ],
)
def test_the_sandbox_keeps_a_template_from_reaching_out_or_running_on(source: str) -> None:
    with pytest.raises(InvalidRequest, match="messages: the chat template says"):
        template(source).render(USER)


def test_every_rendering_may_loop_as_far_as_the_one_before() -> None:
    counting = template("{% for n in range(90000) %}{% endfor %}{{ range(2, 8, 3) | list }}")
    assert counting.render(USER) == counting.render(USER) == "[2, 5]"


def test_an_endless_prompt_is_refused() -> None:
    source = "{% for a in range(1000) %}{{ messages[0].content }}{% endfor %}"
    assert len(template(source).render([{"role": "user", "content": "x" * 10_000}])) == 10_000_000
    with pytest.raises(InvalidRequest, match="the conversation is too long"):
        template(source).render([{"role": "user", "content": "x" * 20_000}])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% unknown %}", "{{ x | nofilter }}"])
def test_a_template_that_does_not_compile_is_a_model_error(source: str) -> None:
    with pytest.raises(ModelError, match="the chat template does not compile"):
        template(source)


def test_a_template_that_cannot_be_used_is_no_obstacle_until_it_is_asked_for() -> None:
    tokenizer: Any = SimpleNamespace(bos_token="<s>", eos_token="</s>")
    assert template_of(None, tokenizer) is None
    broken = template_of("{{ messages | nonsense }}", tokenizer)
    assert isinstance(broken, UnusableTemplate)
    assert "nonsense" in broken.reason
    with pytest.raises(InvalidRequest, match=r"messages: .* not usable: .*nonsense"):
        broken.render([{"role": "user", "content": "hi"}])
