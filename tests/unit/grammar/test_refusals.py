"""What cannot be compiled is refused by name, and soon; what can is compiled soon."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from hard_schemas import nested, values
from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest
from headway.grammar.compiler import GrammarCompiler
from tiny_grammar import END, allowed, compiled, tiny_tokenizer

SOON_S = 5.0
"""Of one processor. The pool's deadline: what takes longer would hold up one of its threads."""


def deep(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no JSON": ({"json": "{"}, "json: "),
    "a list": ({"json": "[1]"}, "json: a schema is an object, not [1]"),
    "a number": ({"json": "3"}, "json: a schema is an object, not 3"),
    "false": ({"json": "false"}, "json: a schema is an object, not False"),
    "NaN": ({"json": '{"const": NaN}'}, "json: NaN is no JSON"),
    "no type": ({"json": '{"type": "objct"}'}, "json: Invalid type: objct"),
    "not": ({"json": '{"not": {}}'}, 'json: Unimplemented keys: ["not"]'),
    "if": ({"json": '{"if": {}, "then": {}}'}, "json: Unimplemented keys"),
    "unique items": ({"json": '{"type": "array", "uniqueItems": true}'}, "json: Unimplemented"),
    "format": ({"json": '{"type": "string", "format": "x"}'}, "json: Unknown format: x"),
    "no such ref": ({"json": '{"$ref": "#/x"}'}, "json: Pointer '/x' does not exist"),
    "ref to elsewhere": ({"json": '{"$ref": "http://a.b/c"}'}, "json: Resource 'http://a.b/c'"),
    "ref to itself": ({"json": '{"$ref": "#"}'}, "json: nothing that the model could say"),
    "refs in a ring": (
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        "json: nothing that the model could say",
    ),
    "lenient": ({"json": '{"x-guidance": {"lenient": true}}'}, "json: x-guidance is not supported"),
    "unsatisfiable": (
        {"json": '{"type":"integer","minimum":5,"maximum":2}'},
        "json: Unsatisfiable",
    ),
    "vague oneOf": (
        {"json": '{"oneOf": [{"type": "string"}, {"minLength": 2}]}'},
        "json: oneOf constraints are not supported",
    ),
    "deep": ({"json": deep(500)}, "json: "),
    "very deep": ({"json": deep(100_000)}, "json: is nested too deeply"),
    "oneOf of depth 8": ({"json": nested(8, "oneOf")}, "json: "),
    "anyOf of depth 8": ({"json": nested(8, "anyOf")}, "json: "),
    "look-around": ({"json": {"type": "string", "pattern": "(?=a)b"}}, "json: regex parse error"),
    "large multiple": ({"json": {"type": "integer", "multipleOf": 999_983}}, "json: multipleOf"),
    "multiples": (
        {"json": {"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}},
        "json: multipleOf: the least common multiple",
    ),
    "small multiple": ({"json": {"type": "number", "multipleOf": 1e-300}}, "json: multipleOf"),
    "multiple in a grammar": (
        {"grammar": 'start: %json {"type": "integer", "m\\u0075ltipleOf": 999983}'},
        "grammar: multipleOf",
    ),
    "unclosed regex": ({"regex": "("}, "regex: invalid regex"),
    "word edge": ({"regex": r"\bab\b"}, "regex: invalid regex"),
    "back-reference": ({"regex": r"(a)\1"}, "regex: invalid regex"),
    "property": ({"regex": r"\p{Foo}"}, "regex: invalid regex"),
    "much that is optional": ({"regex": "a?" * 30_000}, "regex: "),
    "much of it in a grammar": ({"grammar": f"start: /{'a?' * 30_000}/"}, "grammar: "),
    "much of it in a schema": (
        {"json": {"items": [{"type": "string", "pattern": "a?" * 30_000}]}},
        "json: its patterns have 60,0",
    ),
    "much of it in a name": (
        {"json": {"patternProperties": {"a?" * 30_000: {}}}},
        "json: its patterns have 60,0",
    ),
    "much of it in space": (
        {"json": "{}", "whitespace_pattern": " ?" * 30_000},
        "json: its patterns have 60,0",
    ),
    "no grammar": ({"grammar": "hello"}, "grammar: is neither Lark nor GBNF"),
    "deep grammar": ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "grammar: is nei"),
    "lost rule": ({"grammar": "start: other"}, 'grammar: unknown name: "other"'),
    "temperature": ({"grammar": "start: a\na[temperature=0.5]: /a/"}, "grammar: the option temper"),
    "max_tokens": ({"grammar": "start: a\na[lazy, max_tokens=5]: /a/"}, "grammar: the option max_"),
}


@pytest.mark.parametrize(("asked", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_had_is_refused_by_name(asked: dict[str, Any], message: str) -> None:
    started_s = time.thread_time()
    with pytest.raises(InvalidRequest) as raised:
        compiled(**asked)
    assert str(raised.value).startswith(f"structured_outputs.{message}")
    assert len(str(raised.value)) < 600
    assert "x-guidance" not in str(raised.value) or message.startswith("json: x-guidance")
    assert time.thread_time() - started_s < SOON_S


TAKEN: dict[str, dict[str, Any]] = {
    "anything": {"json": "true"},
    "unknown keywords": {"json": {"type": "string", "x-order": 1, "title": "t"}},
    "recursive": {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}}},
    "20,000 values": {"json": {"enum": values(20_000)}},
    "20,000 choices": {"choice": values(20_000)},
    "400 properties": {
        "json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}}
    },
    "disjoint oneOf": {
        "json": {
            "oneOf": [
                {"type": "object", "properties": {"a": {"const": kind}}, "required": ["a"]}
                for kind in "abc"
            ]
        }
    },
    "nested quantifiers": {"regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
    "exponential automaton": {"regex": "(a|b)*a(a|b){400}"},
    "wide repetition": {"regex": "a{1,100000000}"},
    "many stars": {"regex": ".*a" * 60},
    "long string": {"json": {"type": "string", "maxLength": 100_000_000}},
    "long list": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 10_000_000}},
    "ambiguous grammar": {"grammar": 'start: s\ns: s s s | s s | "a" |\n'},
    "left recursion": {"grammar": 'start: a\na: a "b" | "b"\n'},
}


@pytest.mark.parametrize("asked", TAKEN.values(), ids=TAKEN.keys())
def test_what_is_large_is_compiled_soon_and_each_mask_is_found_soon(asked: dict[str, Any]) -> None:
    started_s = time.thread_time()
    constraint = compiled(**asked).start()
    assert time.thread_time() - started_s < SOON_S
    rng, output = random.Random(0), list[int]()
    for _ in range(30):
        asked_s = time.thread_time()
        found = allowed(constraint.allowed(tuple(output)))
        assert time.thread_time() - asked_s < 0.5
        output.append(rng.choice(sorted(found)))
        if output[-1] == END:
            break


def test_a_mask_that_takes_too_much_is_an_error_and_no_made_up_mask() -> None:
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(600)}}
    constraint = compiled(json=json.dumps(wide)).start()
    [brace] = (token for token in allowed(constraint.allowed(())) if token == 0)
    for _ in range(2):  # it stays so
        with pytest.raises(ValueError, match="items; max is"):
            constraint.allowed((brace,))
    assert allowed(constraint.allowed(())) == allowed(compiled(json=wide).start().allowed(()))


def test_without_an_end_of_sequence_nothing_can_be_compiled() -> None:
    compiler = GrammarCompiler(tiny_tokenizer(has_end=False))
    with pytest.raises(InvalidRequest, match="regex: the model has no end of sequence"):
        compiler.compile(StructuredOutputs(regex="a"))
