"""What a model thinks before it answers, told apart from the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from headway.text.parts import OutputParser, Part, Reasoning, joined, overlap

__all__ = ["THINK_MARKS", "ReasoningParser", "ThinkMarks", "ThinkState", "marks_of", "state_after"]

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ThinkMarks:
    """What a think block is between."""

    opener: str
    closer: str


THINK_MARKS = (ThinkMarks("<think>", "</think>"), ThinkMarks("[THINK]", "[/THINK]"))
"""Qwen3, DeepSeek-R1 and those made from it, SmolLM3, QwQ; Magistral."""


class ThinkState(Enum):
    """Where a prompt leaves a model that can think."""

    MAY_BEGIN = auto()
    OPEN = auto()
    """The prompt itself opens the think block."""
    CLOSED = auto()
    """The prompt has an (empty) think block already."""


def marks_of(template: str) -> ThinkMarks | None:
    """The marks that the source of a chat template shows; None: the model does not think."""
    return next((marks for marks in THINK_MARKS if marks.closer in template), None)


def state_after(prompt: str, marks: ThinkMarks) -> ThinkState:
    """Where `prompt` (its end is enough) leaves the model."""
    if prompt.rfind(marks.opener) > prompt.rfind(marks.closer):
        return ThinkState.OPEN
    if prompt.rstrip(_SPACE).endswith(marks.closer):
        return ThinkState.CLOSED
    return ThinkState.MAY_BEGIN


class ReasoningParser:
    """Gives what stands in a think block at the output's beginning as reasoning, and all after it
    to the parser of the answer. White space round the block and at its edges is left out.
    """

    def __init__(self, marks: ThinkMarks, state: ThinkState, answer: OutputParser) -> None:
        self._marks = marks
        self._answer = answer
        self._opened = state is ThinkState.OPEN
        self._read = self._trim if state is ThinkState.CLOSED else self._start
        """Takes what comes next, with what is held before it, and gives the parts of it."""
        self._held = ""

    def feed(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        return joined(self._read(text))

    def finish(self) -> list[Part]:
        rest, self._held = self._held, ""
        if self._read == self._think:
            return joined([Reasoning(rest.rstrip(_SPACE)), *self._answer.finish()])
        if self._read == self._start and self._opened:
            return joined([Reasoning(rest.strip(_SPACE)), *self._answer.finish()])
        return joined([*self._answer.feed(rest), *self._answer.finish()])

    def _start(self, text: str) -> list[Part]:
        """Is there a think block at all?"""
        begun = text.lstrip(_SPACE)
        if self._marks.opener.startswith(begun):
            self._held = text
            return []
        if begun.startswith(self._marks.opener):
            self._read = self._begin
            return self._begin(begun.removeprefix(self._marks.opener))
        if self._opened:
            self._read = self._think
            return self._think(begun)
        self._read = self._answer.feed
        return self._answer.feed(text)

    def _begin(self, text: str) -> list[Part]:
        text = text.lstrip(_SPACE)
        if not text:
            return []
        self._read = self._think
        return self._think(text)

    def _think(self, text: str) -> list[Part]:
        thought, closer, rest = text.partition(self._marks.closer)
        if closer:
            self._read = self._trim
            return [Reasoning(thought.rstrip(_SPACE)), *self._trim(rest)]
        safe = len(text[: len(text) - overlap(text, self._marks.closer)].rstrip(_SPACE))
        self._held = text[safe:]
        return [Reasoning(text[:safe])]

    def _trim(self, text: str) -> list[Part]:
        """White space between the block and the answer."""
        text = text.lstrip(_SPACE)
        if not text:
            return []
        self._read = self._answer.feed
        return self._answer.feed(text)
