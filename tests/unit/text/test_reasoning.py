from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.text.parts import Part, PlainText, Reasoning, Text, joined
from headway.text.reasoning import (
    THINK_MARKS,
    ReasoningParser,
    ThinkMarks,
    ThinkState,
    marks_of,
    state_after,
)
from unit.text.conversations import TEMPLATES
from unit.text.cuts import pieces, texts_of

XML, MISTRAL = THINK_MARKS


def parts_of(
    text: str, state: ThinkState, cuts: Sequence[int] = (), marks: ThinkMarks = XML
) -> list[Part]:
    parser = ReasoningParser(marks, state, PlainText())
    parts = [part for piece in pieces(text, cuts) for part in parser.feed(piece)]
    return joined(parts + parser.finish())


@pytest.mark.parametrize(
    ("state", "text", "parts"),
    [
        ("MAY_BEGIN", "<think>\nso\n</think>\n\nyes", [Reasoning("so"), Text("yes")]),
        ("MAY_BEGIN", "  <think>a</think>b", [Reasoning("a"), Text("b")]),
        ("MAY_BEGIN", " yes ", [Text(" yes ")]),
        ("MAY_BEGIN", "no <think>a</think>", [Text("no <think>a</think>")]),
        ("MAY_BEGIN", "<think>\n\n</think>\n\nyes", [Text("yes")]),
        ("MAY_BEGIN", "<think>cut off", [Reasoning("cut off")]),
        ("MAY_BEGIN", "<think>a </thi", [Reasoning("a </thi")]),
        ("MAY_BEGIN", "<thin", [Text("<thin")]),
        ("MAY_BEGIN", "<think>a</think>b</think>", [Reasoning("a"), Text("b</think>")]),
        ("OPEN", "so\n</think>\n\nyes", [Reasoning("so"), Text("yes")]),
        ("OPEN", "\n<think>\nso</think>yes", [Reasoning("so"), Text("yes")]),
        ("OPEN", "cut off", [Reasoning("cut off")]),
        ("OPEN", "</think>yes", [Text("yes")]),
        ("CLOSED", "\n<think>a</think>", [Text("<think>a</think>")]),
        ("CLOSED", "", []),
    ],
)
def test_a_think_block_at_the_beginning_is_reasoning(
    state: str, text: str, parts: list[Part]
) -> None:
    assert parts_of(text, ThinkState[state]) == parts


def test_marks_are_those_of_the_family() -> None:
    text = "[THINK]a[/THINK]b <think>"
    assert parts_of(text, ThinkState.MAY_BEGIN, marks=MISTRAL) == [
        Reasoning("a"),
        Text("b <think>"),
    ]


PIECES = st.sampled_from(["<think>", "</think>", "<th", "</", "think>", " ", "\n", "a", "b c", "<"])


@given(
    st.lists(PIECES, max_size=12).map("".join),
    st.lists(st.integers(0, 60)),
    st.sampled_from(ThinkState),
)
def test_parts_do_not_depend_on_how_the_text_was_cut(
    text: str, cuts: list[int], state: ThinkState
) -> None:
    whole = parts_of(text, state)
    assert parts_of(text, state, cuts) == whole
    assert parts_of(text, state, list(range(len(text)))) == whole


@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from(ThinkState))
def test_only_marks_and_white_space_are_left_out(text: str, state: ThinkState) -> None:
    shown = "".join(texts_of(parts_of(text, state)))
    rest = iter(shown)
    missing = []
    wanted = next(rest, None)
    for character in text:
        if character == wanted:
            wanted = next(rest, None)
        else:
            missing.append(character)
    assert wanted is None, "something was added"
    assert set(missing) <= set("<think>/ \n")


def test_a_thought_is_given_out_as_it_comes() -> None:
    parser = ReasoningParser(XML, ThinkState.MAY_BEGIN, PlainText())
    assert parser.feed("<think>\n") == []
    assert parser.feed("one ") == [Reasoning("one")]
    assert parser.feed("two</th") == [Reasoning(" two")]
    assert parser.feed("ree") == [Reasoning("</three")]


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("user: hi\nassistant:", "MAY_BEGIN"),
        ("<think>a</think>b\nassistant:", "MAY_BEGIN"),
        ("<think>a</think>b\nassistant:<think>\n", "OPEN"),
        ("assistant:<think>\n\n</think>\n\n", "CLOSED"),
    ],
)
def test_a_prompt_may_open_or_close_the_block_itself(prompt: str, state: str) -> None:
    assert state_after(prompt, XML) is ThinkState[state]


def test_templates_show_whether_a_model_thinks() -> None:
    thinking = {name for name, source in TEMPLATES.items() if marks_of(source) is not None}
    assert thinking == {"deepseek", "qwen"}
    assert marks_of("… [THINK]…[/THINK] …") == MISTRAL
