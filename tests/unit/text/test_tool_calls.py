"""Calls in every format: written, read back, told from text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.text.parts import CallArguments, CallStart, Part, Text, joined
from headway.text.tools.formats import FORMATS, CallFormat, format_of
from headway.text.tools.parser import ToolCallParser
from unit.text.conversations import TEMPLATES
from unit.text.cuts import pieces, texts_of

NAMES = ["get", "get_weather", "x"]
HERMES = FORMATS["hermes"]
AMONG_TEXT = [form for form in FORMATS.values() if form.trigger]
by_name = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def parts_of(form: CallFormat, text: str, cuts: list[int] | None = None) -> list[Part]:
    parser = ToolCallParser(form, NAMES)
    parts = [part for piece in pieces(text, cuts or []) for part in parser.feed(piece)]
    return joined(parts + parser.finish())


def called(*calls: dict[str, Any]) -> list[Part]:
    functions = [item["function"] for item in calls]
    texts = [json.dumps(function["arguments"], ensure_ascii=False) for function in functions]
    return [
        part
        for index, (function, text) in enumerate(zip(functions, texts, strict=True))
        for part in (CallStart(index, function["name"]), CallArguments(index, text))
    ]


AWKWARD = [
    call("get", text='"}]</tool_call>\\', more={"a": [1, {"b": []}], "c": "é{["}),
    call("get_weather"),
    call("x", n=1),
]


@by_name
@pytest.mark.parametrize("calls", [AWKWARD, AWKWARD[:1], AWKWARD[1:2]], ids=len)
@pytest.mark.parametrize("around", [("", ""), (" \n", "\n")])
def test_calls_are_read_as_they_are_written(
    form: CallFormat, calls: list[dict[str, Any]], around: tuple[str, str]
) -> None:
    text = form.written(calls)
    assert parts_of(form, around[0] + text + around[1]) == called(*calls)


@by_name
def test_white_space_within_calls_does_not_matter(form: CallFormat) -> None:
    text = form.written([call("get", a=1), call("x")])
    for literal in ('{"name": "', '", "arguments": ', '", "parameters": '):
        text = text.replace(literal, literal.replace(" ", "\n"))
    assert parts_of(form, text) == called(call("get", a=1), call("x"))


@pytest.mark.parametrize("form", AMONG_TEXT, ids=lambda form: form.name)
def test_text_may_come_before_and_after(form: CallFormat) -> None:
    text = "I look. \n" + form.written([call("x")]) + " Done."
    first, *calls, last = parts_of(form, text)
    assert [first, last] == [Text("I look."), Text(" Done.")]
    assert calls == called(call("x"))


def test_the_arguments_come_as_they_are_made() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.feed('Well <tool_call>\n{"name": "get_w') == [Text("Well")]
    assert parser.feed('eather", "arguments": ') == []
    assert parser.feed('{"pl') == [CallStart(0, "get_weather"), CallArguments(0, '{"pl')]
    assert parser.feed('ace": "Bonn"}') == [CallArguments(0, 'ace": "Bonn"}')]
    assert parser.feed("}\n</tool_call>") == parser.finish() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "x", "parameters": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "x", "arguments": "{}"}\n</tool_call>'),
        ("hermes", "<tool_call>"),
        ("hermes", "a < b, a <tool_"),
        ("mistral", '[TOOL_CALLS] {"name": "x", "arguments": {}}'),
        ("mistral_args", "[TOOL_CALLS]getx[ARGS]{}"),
        ("llama3", 'So: {"name": "x", "parameters": {}}'),
        ("llama3", '{"names": ["x"]}'),
        ("json", '```json\n{"name": "x", "arguments": {}}\n```'),
        ("json", "  \n"),
        ("json", ""),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    assert parts_of(FORMATS[name], text) == ([Text(text)] if text else [])


def test_a_call_that_was_cut_off_keeps_what_there_is() -> None:
    text = HERMES.written([call("x", place="Bonn")])
    cut = text[: text.index("nn")]
    assert parts_of(HERMES, cut) == [CallStart(0, "x"), CallArguments(0, '{"place": "Bo')]


def test_a_mark_before_calls_is_left_out_where_it_is_text() -> None:
    form = FORMATS["llama3"]
    assert parts_of(form, "<|python_tag|>" + form.written([call("x")])) == called(call("x"))
    assert parts_of(form, "<|python_tag|>so") == [Text("<|python_tag|>so")]


MARKS = ("<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}")
KEYS = ('{"name": "', '"name"', '", "arguments": ', '", "parameters": ', '"', "\\", ", ", ";")
WORDS = (" ", "\n", "a", "get", "get_weather", "{}", '{"k": "}"}')
WRITTEN = tuple(form.written(AWKWARD) for form in FORMATS.values())
SNIPPETS = st.sampled_from(MARKS + KEYS + WORDS + WRITTEN)
TEXTS = st.lists(SNIPPETS, max_size=14).map("".join)


@given(st.sampled_from(list(FORMATS.values())), TEXTS, st.lists(st.integers(0, 300)))
def test_parts_do_not_depend_on_how_the_text_was_cut(
    form: CallFormat, text: str, cuts: list[int]
) -> None:
    whole = parts_of(form, text)
    assert parts_of(form, text, cuts) == whole
    assert parts_of(form, text, list(range(len(text)))) == whole


@given(st.sampled_from(list(FORMATS.values())), TEXTS)
def test_calls_are_numbered_and_text_is_never_made_up(form: CallFormat, text: str) -> None:
    parts = parts_of(form, text)
    started = [part.call for part in parts if isinstance(part, CallStart)]
    assert started == list(range(len(started)))
    place = 0
    for part in parts:
        for piece in texts_of([part]):
            place = text.index(piece, place) + len(piece)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("tools_hermes", "hermes"),
        ("tools_llama3", "llama3"),
        ("tools_mistral", "mistral"),
        ("tools_mistral_args", "mistral_args"),
        ("chatml", "json"),
        ("deepseek", "json"),
        ("gemma", "json"),
    ],
)
def test_a_template_shows_its_format(template: str, name: str) -> None:
    assert format_of(TEMPLATES[template]).name == name


def test_xml_within_the_same_tags_is_another_format() -> None:
    assert format_of("<tool_call>\n<function={{ name }}>").name == "json"
