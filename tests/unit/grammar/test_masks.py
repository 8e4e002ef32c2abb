"""Masks of a small vocabulary are those that trying every token finds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidRequest
from tiny_grammar import END, TOKENS, allowed, as_tokens, by_trying, compiled

FLAGS = {
    "type": "object",
    "properties": {"a": {"enum": [1, 12]}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
_FLAGS = [f'"a":{n}{b}' for n in (1, 12) for b in ("", ',"b":true', ',"b":false')]
_COMPACT = [f"{{{flags}}}" for flags in _FLAGS]
_SPACES = ("", " ", *("\n" + " " * count for count in range(9)))
_WORDS = ["".join(parts) for count in (1, 2, 3) for parts in product(("ab", "ba"), repeat=count)]
_LARK = 'start: pair ("," pair)?\npair: "a" DIGIT\nDIGIT: /[12]/\n'
_GBNF = 'root ::= pair ("," pair)?\npair ::= "a" [12]\n'
_PAIRS = ["a1", "a2", *(f"a{i},a{j}" for i, j in product((1, 2), repeat=2))]

_CHOICES = ["a", "ab", "aba", "é\n", '{"']

LANGUAGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "json": ({"json": FLAGS, "disable_any_whitespace": True}, _COMPACT),
    "spaced json": (
        {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1}},
        [f"[{a}{b}{c}]" for a in _SPACES for b in ("true", "false") for c in _SPACES],
    ),
    "own spaces": (
        {"json": {"type": "array", "items": {"enum": ["é"]}}, "whitespace_pattern": " {1,2}"}
        | {"json": {"type": "array", "items": {"enum": ["é"]}, "minItems": 1, "maxItems": 1}},
        [f'[{a}"é"{b}]' for a in ("", " ", "  ") for b in ("", " ", "  ")],
    ),
    "regex": ({"regex": r"(ab|ba){1,3}c?"}, [*_WORDS, *(word + "c" for word in _WORDS)]),
    "digits": ({"regex": r"^\d/?$"}, [f"{digit}{end}" for digit in range(10) for end in ("", "/")]),
    "choice": ({"choice": _CHOICES}, _CHOICES),
    "lark": ({"grammar": _LARK}, _PAIRS),
    "gbnf": ({"grammar": _GBNF}, _PAIRS),
}
each_language = pytest.mark.parametrize(
    ("asked", "language"), LANGUAGES.values(), ids=LANGUAGES.keys()
)


@each_language
def test_a_token_is_allowed_exactly_where_some_output_goes_on_with_it(
    asked: dict[str, Any], language: list[str]
) -> None:
    grammar, rng = compiled(**asked), random.Random(1)
    for _ in range(25):
        constraint, output = grammar.start(), list[int]()
        while END not in output:
            found = allowed(constraint.allowed(tuple(output)))
            assert found == by_trying(language, output), b"".join(TOKENS[t] for t in output)
            output.append(rng.choice(sorted(found)))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(LANGUAGES)), st.randoms(use_true_random=False)),
        min_size=1,
        max_size=3,
    )
)
def test_a_mask_does_not_depend_on_what_was_asked_before(
    walks: Sequence[tuple[str, random.Random]],
) -> None:
    """Outputs that grow, are cut back, and become others."""
    for name, rng in walks:
        asked, language = LANGUAGES[name]
        constraint = compiled(**asked).start()
        for _ in range(6):
            output = as_tokens(rng.choice(language))
            cut = output[: rng.randrange(len(output) + 1)]
            assert allowed(constraint.allowed(cut)) == by_trying(language, cut)


def test_an_output_that_has_ended_may_be_asked_about() -> None:
    """A plan that was made before the end was known comes to nothing, and does no harm."""
    constraint = compiled(choice=["ab"]).start()
    whole = as_tokens("ab")
    assert allowed(constraint.allowed((*whole, END))) == {END}
    assert allowed(constraint.allowed(whole)) == {END}
    assert END not in allowed(constraint.allowed(()))


def test_a_mark_is_no_text() -> None:
    """The vocabulary has it, and nothing else that could spell it."""
    with pytest.raises(InvalidRequest, match=r"choice: nothing that the model could say"):
        compiled(choice=["<end>"])
