"""What a model's output is made of, beside plain text: reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

__all__ = [
    "CallArguments",
    "CallStart",
    "OutputParser",
    "Part",
    "PlainText",
    "Reasoning",
    "Text",
    "joined",
    "overlap",
]


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


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same with neighbours of a kind made one, and without empty texts."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match part, last:
            case ((Text("") | Reasoning("") | CallArguments(_, "")), _):
                pass
            case Text(text), Text(before):
                result[-1] = Text(before + text)
            case Reasoning(text), Reasoning(before):
                result[-1] = Reasoning(before + text)
            case CallArguments(call, text), CallArguments(same, before) if call == same:
                result[-1] = CallArguments(call, before + text)
            case _:
                result.append(part)
    return result


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` with which `mark`, not whole in it, begins."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
