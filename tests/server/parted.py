"""Answers in parts, without a model that writes them: a delta says what its text is."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import pytest

from headway.core.params import SamplingParams
from headway.server.api.conversation import Conversation, Prepared
from headway.server.generation import ServedModel
from headway.text.parts import CallArguments, CallStart, Part, Reasoning, Text
from server.fake_engine import delta

__all__ = ["PROMPT", "WEATHER", "Asked", "asked", "everything"]

PROMPT = tuple(range(10))
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "What it is like outside.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
"""A tool as `/v1/responses` takes it."""


class MarkedParser:
    """`think:…`, `call:name`, `args:…`; what has no mark is text."""

    def __init__(self) -> None:
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        mark, _, rest = text.partition(":")
        match mark:
            case "think":
                return [Reasoning(rest)]
            case "call":
                self._calls += 1
                return [CallStart(self._calls - 1, rest)]
            case "args":
                return [CallArguments(self._calls - 1, rest)]
        return [Text(text)] if text else []

    def finish(self) -> list[Part]:
        return []


@dataclass(slots=True)
class Asked:
    """What an endpoint made of the bodies that it got."""

    conversations: list[Conversation] = field(default_factory=list)
    error: Exception | None = None
    """Raised when the prompt is made."""

    def prepare(
        self, conversation: Conversation, model: ServedModel, params: SamplingParams
    ) -> Prepared:
        self.conversations.append(conversation)

        def encode() -> list[tuple[int, ...]]:
            if self.error is not None:
                raise self.error
            return [PROMPT]

        return Prepared(encode, params, MarkedParser)


def asked(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Stands in for `prepare` in the endpoint's module."""
    stand_in = Asked()
    monkeypatch.setattr(module, "prepare", stand_in.prepare)
    return stand_in


def everything(_request: object) -> list[object]:
    """An answer with all that one can hold."""
    return [
        delta("think:It is ", tokens=[1, 2], cached=4),
        delta("think:hot.", tokens=[3], cached=4),
        delta("Let me ", tokens=[4], cached=4),
        delta("see.", tokens=[5, 6], cached=4),
        delta("call:weather", tokens=[7], cached=4),
        delta('args:{"city":', tokens=[8], cached=4),
        delta('args:"Oslo"}', tokens=[9], finish="stop", cached=4),
    ]
