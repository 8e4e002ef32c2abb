"""What outputs may be where tools can be called, and after thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headway.core.structured import Calls, StructuredOutputs, Thoughts, ToolSignature
from headway.errors import InvalidRequest
from headway.grammar.compiler import GrammarCompiler
from headway.text.parts import CallArguments, CallStart, joined
from headway.text.tools.formats import FORMATS, CallFormat
from headway.text.tools.parser import ToolCallParser

SPECIAL = ("<eos>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[THINK]", "[/THINK]")
WORDS = ("}}", '"}', '{"', "}\n</", "tool_call>", "</think>", '</think>{"', "<tool", '": "', "\n\n")
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS = (
    ToolSignature("weather", json.dumps(SCHEMA)),
    ToolSignature("clock", '{"type": "object", "additionalProperties": false}'),
)
WEATHER = {"function": {"name": "weather", "arguments": {"place": "Bonn </tool_call>"}}}
CLOCK = {"function": {"name": "clock", "arguments": {}}}
XML = Thoughts(opener="<think>", closer="</think>", opened=False)
OPENED = Thoughts(opener="<think>", closer="</think>", opened=True)
MISTRAL = Thoughts(opener="[THINK]", closer="[/THINK]", opened=False)


class WordTokenizer:
    """Bytes, some words that go across what a grammar is put together from, and marks."""

    def __init__(self) -> None:
        self.texts = [
            *(bytes([byte]) for byte in range(256)),
            *(word.encode() for word in WORDS),
            *(mark.encode() for mark in SPECIAL),
        ]
        self.vocab_size = len(self.texts)
        self.eos_token_ids = (self.texts.index(b"<eos>"),)
        self.bos_token_id = None

    def token_bytes(self, token_id: int) -> bytes:
        return self.texts[token_id]

    def token_text(self, token_id: int) -> str:
        return self.texts[token_id].decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id >= self.vocab_size - len(SPECIAL)

    def encode(self, text: str, *, words: bool) -> list[int]:
        marks = [mark for mark in SPECIAL if mark in text]
        known = sorted([*WORDS, *marks] if words else marks, key=len, reverse=True)
        return list(self._encode(text, known))

    def _encode(self, text: str, known: list[str]) -> Iterator[int]:
        while text:
            word = next((word for word in known if text.startswith(word)), None)
            if word is None:
                yield from text[0].encode()
                text = text[1:]
            else:
                yield self.texts.index(word.encode())
                text = text.removeprefix(word)


TOKENIZER = WordTokenizer()
COMPILER = GrammarCompiler(TOKENIZER)  # type: ignore[arg-type]


def calls_of(form: CallFormat, **more: Any) -> Calls:
    return form.calls_of(TOOLS, **more)


def is_allowed(asked: StructuredOutputs, text: str, *, whole: bool = True) -> bool:
    """The model may say that, and (`whole`) nothing but that; cut into tokens in two ways."""
    found = {_is_allowed(asked, TOKENIZER.encode(text, words=words), whole) for words in (0, 1)}
    [allowed] = found
    return allowed


def _is_allowed(asked: StructuredOutputs, tokens: list[int], whole: bool) -> bool:
    constraint = COMPILER.compile(asked).start()
    ids = [*tokens, *TOKENIZER.eos_token_ids] if whole else tokens
    for place, token in enumerate(ids):
        mask = int.from_bytes(constraint.allowed(ids[:place]), "little")
        if not mask >> token & 1:
            return False
    return True


by_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


@by_format
def test_required_calls_begin_at_once(form: CallFormat) -> None:
    asked = StructuredOutputs(calls=calls_of(form, required=True))
    assert is_allowed(asked, form.written([WEATHER]))
    assert is_allowed(asked, form.written([CLOCK, WEATHER, CLOCK]))
    assert not is_allowed(asked, "", whole=True)
    assert not is_allowed(asked, "So", whole=False)
    assert not is_allowed(asked, form.written([WEATHER]) + " x", whole=False)


@by_format
def test_calls_follow_the_schemas(form: CallFormat) -> None:
    wrong = [
        {"function": {"name": "weather", "arguments": {}}},
        {"function": {"name": "weather", "arguments": {"place": 1}}},
        {"function": {"name": "clock", "arguments": {"place": "Bonn"}}},
        {"function": {"name": "other", "arguments": {}}},
    ]
    for required in (True, False):
        asked = StructuredOutputs(calls=calls_of(form, required=required))
        assert not any(is_allowed(asked, form.written([call])) for call in wrong)


@by_format
def test_one_call_is_all_where_they_are_not_parallel(form: CallFormat) -> None:
    for required in (True, False):
        asked = StructuredOutputs(calls=calls_of(form, required=required, parallel=False))
        assert is_allowed(asked, form.written([WEATHER]))
        assert not is_allowed(asked, form.written([WEATHER, CLOCK]))


@by_format
def test_text_is_free_as_long_as_it_does_not_call(form: CallFormat) -> None:
    asked = StructuredOutputs(calls=calls_of(form))
    assert is_allowed(asked, "")
    assert is_allowed(asked, " Well, {a} <tool or [b].\n")
    assert is_allowed(asked, form.written([WEATHER, CLOCK]))
    assert not is_allowed(asked, form.written([WEATHER])[:-3])
    text = "I look.\n" + form.written([CLOCK])
    parts = ToolCallParser(form, ["clock"]).feed(text)
    assert is_allowed(asked, text), "as a call, or as text"
    assert any(isinstance(part, CallStart) for part in parts) == bool(form.trigger)


def test_a_mark_may_stand_before_calls() -> None:
    form = FORMATS["llama3"]
    for required in (True, False):
        asked = StructuredOutputs(calls=calls_of(form, required=required))
        assert is_allowed(asked, "<|python_tag|>" + form.written([CLOCK]))


@by_format
def test_an_answer_that_does_not_call_may_be_held_to_something_else(form: CallFormat) -> None:
    otherwise = StructuredOutputs(regex=r'\{"sum": \d+\}')
    if form.trigger:  # else calls are JSON, too
        otherwise = StructuredOutputs(json={"type": "object", "required": ["sum"]})
    asked = StructuredOutputs(calls=calls_of(form, otherwise=otherwise))
    assert is_allowed(asked, '{"sum": 3}')
    assert is_allowed(asked, form.written([WEATHER, CLOCK]))
    assert not is_allowed(asked, "{}")
    assert not is_allowed(asked, "So", whole=False)


HELD = {
    "json": StructuredOutputs(json={"const": {"a": 1}}),
    "regex": StructuredOutputs(regex=r"\{\"a\": 1\}"),
    "choice": StructuredOutputs(choice=['{"a": 1}', "b"]),
    "grammar": StructuredOutputs(grammar='start: "{" "\\"a\\":" "1" "}"\n%ignore " "'),
    "calls": StructuredOutputs(
        calls=calls_of(FORMATS["json"], otherwise=StructuredOutputs(choice=['{"a": 1}']))
    ),
}


@pytest.mark.parametrize("asked", HELD.values(), ids=HELD)
def test_thoughts_are_free_and_what_follows_is_not(asked: StructuredOutputs) -> None:
    answer = '{"a": 1}'
    thought = "It is {1} or <tool_call>.</thin"
    for thoughts, opener, closer in (
        (XML, "<think>", "</think>"),
        (OPENED, "", "</think>"),
        (MISTRAL, "[THINK]", "[/THINK]"),
    ):
        held = StructuredOutputs(**{**_fields(asked), "thoughts": thoughts})
        block = opener + thought + closer
        assert is_allowed(held, block + answer)
        assert is_allowed(held, block + "\n\n" + answer)
        assert not is_allowed(held, block + "c", whole=False)
        assert not is_allowed(held, block)
        assert is_allowed(held, answer) != thoughts.opened, "the block that is open must end"


@by_format
def test_what_looks_like_a_call_in_a_thought_is_none(form: CallFormat) -> None:
    for thoughts, block in (
        (XML, "<think>I could <tool_call> the {clock}</think>"),
        (OPENED, "I could <tool_call> the {clock}</think>"),
        (MISTRAL, "[THINK]I could <tool_call> the {clock}[/THINK]"),
    ):
        asked = StructuredOutputs(calls=calls_of(form), thoughts=thoughts)
        assert is_allowed(asked, block + "It is noon.")
        assert is_allowed(asked, block + "\n\n" + form.written([CLOCK]))
        assert not is_allowed(asked, block + form.written([CLOCK]).replace("clock", "other"))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "regex"),
        ({"type": "object", "properties": {"a": {"type": "thing"}}}, "thing"),
        ({"type": "object", "properties": []}, "properties"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "a"),
    ],
)
def test_a_tool_whose_schema_is_wrong_is_named(schema: Any, says: str) -> None:
    tools = (*TOOLS, ToolSignature("wrong", json.dumps(schema), "tools[7].parameters"))
    asked = StructuredOutputs(calls=replace(calls_of(FORMATS["hermes"]), tools=tools))
    with pytest.raises(InvalidRequest, match=says) as caught:
        COMPILER.compile(asked)
    assert caught.value.field == "tools[7].parameters"


def test_an_answer_whose_schema_is_wrong_is_named() -> None:
    otherwise = StructuredOutputs(json={"type": "thing"}, path="response_format")
    asked = StructuredOutputs(calls=calls_of(FORMATS["hermes"], otherwise=otherwise))
    with pytest.raises(InvalidRequest, match="thing") as caught:
        COMPILER.compile(asked)
    assert caught.value.field == "response_format"


@by_format
def test_what_is_allowed_is_read_as_calls(form: CallFormat) -> None:
    """The shortest of all that the grammar allows, token by token."""
    constraint = COMPILER.compile(StructuredOutputs(calls=calls_of(form, required=True))).start()
    output: list[int] = []
    while True:
        mask = int.from_bytes(constraint.allowed(output), "little")
        if mask >> TOKENIZER.eos_token_ids[0] & 1:
            break
        allowed = [token for token in range(TOKENIZER.vocab_size) if mask >> token & 1]
        # A quote ends a string, a brace an object; "A" is as good a character as any.
        preferred = (b'"', b"}", b"A")
        known = [TOKENIZER.texts.index(text) for text in preferred]
        output.append(next((token for token in known if token in allowed), allowed[-1]))
    text = b"".join(map(TOKENIZER.token_bytes, output)).decode()
    parser = ToolCallParser(form, [tool.name for tool in TOOLS])
    start, arguments = joined([*parser.feed(text), *parser.finish()])
    assert isinstance(start, CallStart)
    assert isinstance(arguments, CallArguments)
    assert isinstance(json.loads(arguments.text), dict)


def _fields(asked: StructuredOutputs) -> dict[str, Any]:
    names = ("json", "regex", "choice", "grammar", "calls")
    return {name: getattr(asked, name) for name in names}
