"""Prompts as text, of an exact length by the server's own tokenizer, whatever that is.

The words below are a single token each, with the space before them, in the vocabularies of all
families that are served today. What else there is to a prompt (a chat's template, a mark for the
beginning) has the same length in all; two questions to the server tell how long it is, and
whether each word is a token there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, TypeAlias

from headway.bench.load import Outcome
from headway.bench.openai import Message, Prompt, Target
from headway.errors import HeadwayError, InvalidConfig
from headway.workload import Text, WorkItem

__all__ = [
    "WORDS",
    "Form",
    "check_lengths",
    "cut_to",
    "lengthened",
    "measure_frame",
    "prompt_of",
    "text_prompt",
]

Form: TypeAlias = Literal["tokens", "text", "chat"]
"""What prompts are: token ids, a text, messages."""

_TEXT = """
the of and to in is for that was on with as it by at from be are this an or not have were which
but his had they their has one all we more been who its would when there so what can about if
out up into other time new some than only could these two may then do first any now such like
our over me after even also made many did must before back see through way where get much go
well your know should down work year because come people just say each those how good long make
world still own life day never under last might great old off both since against right came
another take few use house used found part place again small around home without three second
water city between left number set next group night side
"""

WORDS = tuple(_TEXT.split())

_OPENING = "Text:"
"""Goes before all words, so that each has its space."""


def text_prompt(token_ids: Sequence[int]) -> str:
    """Made of words by their number in `WORDS`."""
    return _OPENING + _words(token_ids)


def _words(token_ids: Sequence[int]) -> str:
    return "".join(" " + WORDS[token] for token in token_ids)


def prompt_of(outcome: Outcome, form: Form, frame: int) -> Prompt:
    """The prompt of a request that is to be sent now, with the answers that the turns before it
    had, and notes in `outcome` how long it is to be.

    Args:
        outcome: one of a conversation's, of which all before have been answered; or any other.
        form: what to make.
        frame: tokens that the server adds to a text, of which each prompt has more.
    """
    turns = _so_far(outcome)
    if form == "tokens":
        return _token_prompt(turns)
    first = text_prompt(cut_to(turns[0].item.token_ids, frame))
    if len(turns) == 1:
        return first
    outcome.asked_len = None
    if form == "text":
        later = (a.said + _words(b.item.own_ids) for a, b in pairwise(turns))
        return first + "".join(later)
    messages: list[Message] = [{"role": "user", "content": first}]
    for before, turn in pairwise(turns):
        messages.append({"role": "assistant", "content": before.said})
        messages.append({"role": "user", "content": text_prompt(turn.item.own_ids)})
    return messages


def _so_far(outcome: Outcome) -> list[Outcome]:
    """The conversation up to it."""
    turns = [outcome]
    while (before := turns[-1].before) is not None:
        turns.append(before)
    return turns[::-1]


def _token_prompt(turns: Sequence[Outcome]) -> Sequence[int]:
    last = turns[-1]
    ids = list(turns[0].item.token_ids)
    for before, turn in pairwise(turns):
        last.made_up |= not before.answer_ids
        ids += before.answer_ids or turn.item.made_up_answer_ids
        ids += turn.item.own_ids
    last.asked_len = len(ids)
    return ids


async def measure_frame(target: Target) -> int:
    """Tokens of a prompt that are none of its words.

    Raises HeadwayError where the server does not count tokens, and OSError.
    """
    every = range(len(WORDS))
    frame = await target.prompt_tokens(text_prompt(every[:1])) - 1
    words = await target.prompt_tokens(text_prompt(every)) - frame
    if words != len(WORDS):
        raise HeadwayError(
            f"the server makes {words} tokens of {len(WORDS)} common words: prompts of text cannot "
            "be given an exact length there; --prompts tokens can, with --backend openai"
        )
    return frame


def check_lengths(items: Sequence[WorkItem], frame: int, *, free: Container[str]) -> None:
    """Before anything is sent. Raises InvalidConfig for a prompt that no text can be as short as,
    unless it is of a class in `free`."""
    for item in items:
        if item.input_len <= frame and item.class_name not in free:
            raise InvalidConfig(
                "prompts",
                f"a text has at least {frame + 1} tokens there, as {frame} are the server's own "
                f"(its chat template); the class {item.class_name!r} has one of {item.input_len}",
            )


def lengthened(item: WorkItem, frame: int) -> WorkItem:
    """As long as the shortest text, where it is shorter. A later turn never is."""
    missing = frame + 1 - item.input_len
    if missing <= 0:
        return item
    last = item.prompt[-1]
    return replace(item, prompt=(*item.prompt, Text(f"{last.key}/more", missing, last.ids)))


def cut_to(token_ids: Sequence[int], frame: int) -> Sequence[int]:
    """So many words that the whole prompt has as many tokens as there are `token_ids`, which are
    more than the frame."""
    assert len(token_ids) > frame
    return token_ids[: len(token_ids) - frame]
