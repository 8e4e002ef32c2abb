"""What a model's output is made of, beside plain text: reasoning and tool calls."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["CallArguments", "CallStart", "OutputParser", "Part", "PlainText", "Reasoning", "Text"]


class Text(NamedTuple):
    """More of the answer."""

    text: str


class Reasoning(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


class CallStart(NamedTuple):
    """A tool call begins."""

    call: int
    """Which of the answer's calls, from 0."""
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments, which joined are a JSON object."""

    call: int
    text: str


Part = Text | Reasoning | CallStart | CallArguments


class OutputParser(Protocol):
    """Takes one output apart as it comes. The parts do not depend on how the text was cut."""

    def feed(self, text: str) -> list[Part]:
        """What is certain by now, in order; none of the texts is empty."""
        ...

    def finish(self) -> list[Part]:
        """The output has ended, wherever that was: what was held back."""
        ...


class PlainText:
    """All of it is the answer."""

    def feed(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self) -> list[Part]:
        return []
