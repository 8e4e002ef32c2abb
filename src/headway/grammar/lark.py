"""What was asked, as a grammar in llguidance's dialect of Lark.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from headway.core.structured import StructuredOutputs
from headway.grammar.calls import calls_grammar
from headway.grammar.literals import HEADER, escaped
from headway.grammar.schema import check_multiples, spaced
from headway.grammar.thoughts import after_thoughts

__all__ = ["to_lark"]

_WITHOUT_EFFECT = re.compile(
    r"^\s*[?!]?\w+\s*\[[^\]\n]*\b(temperature|max_tokens|stop|stop_capture|capture)\b", re.MULTILINE
)
_OBJECT = '{"type": "object"}'


def to_lark(asked: StructuredOutputs, special: Mapping[str, int]) -> str:
    """The grammar. `special`: text of a special token → its id; text alone does not come to it.

    Raises ValueError for what cannot be had.
    """
    grammars = _grammars(asked, special)
    check_multiples("\n".join(grammars.values()))
    if len(grammars) == 1:
        [grammar] = grammars.values()
        return grammar
    named = [{"name": name, "lark_grammar": grammar} for name, grammar in grammars.items()]
    return json.dumps({"grammars": named})


def _grammars(asked: StructuredOutputs, special: Mapping[str, int]) -> dict[str, str]:
    """By name; the first is the whole, and refers to the next."""
    if asked.calls is None:
        grammars = {"text": HEADER + _of_kind(asked)}
    else:
        grammars = {"answer": HEADER + calls_grammar(asked.calls, special, asked.thoughts)}
        if asked.calls.otherwise is not None:
            grammars["text"] = HEADER + _of_kind(asked.calls.otherwise)
    if asked.thoughts is None:
        return grammars
    answer = next(iter(grammars))
    return {"output": HEADER + after_thoughts(asked.thoughts, answer, special), **grammars}


def _of_kind(asked: StructuredOutputs) -> str:
    if asked.json is not None:
        assert isinstance(asked.json, str)
        return f"start: {_json(asked.json, asked)}"
    if asked.json_object:
        return f"start: {_json(_OBJECT, asked)}"
    if asked.regex is not None:
        return f"start: /{regex_to_lark(asked.regex, 'd')}/"
    if asked.choice is not None:
        # One terminal: as many rules would be an item each in every row of the parser.
        return "start: CHOICE\nCHOICE: " + " | ".join(f"/{escaped(c)}/" for c in asked.choice)
    assert asked.grammar is not None
    return _grammar(asked.grammar)


def _json(schema: str, asked: StructuredOutputs) -> str:
    if asked.disable_any_whitespace:
        schema = spaced(schema, whitespace=None)
    elif asked.whitespace_pattern is not None:
        schema = spaced(schema, whitespace=asked.whitespace_pattern)
    else:
        schema = spaced(schema)
    return f"%json {schema}"


def _grammar(text: str) -> str:
    if (found := _WITHOUT_EFFECT.search(text)) is not None:
        raise ValueError(f"the option {found[1]} of a rule is not supported")
    try:
        return any_to_lark(text)
    except (Exception, RecursionError) as error:
        raise ValueError(f"is neither Lark nor GBNF: {error!s:.300}") from error
