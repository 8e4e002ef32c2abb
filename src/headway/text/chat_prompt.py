"""Conversations to tokens: what people and tools say stays text, and never becomes a mark.

A template writes special tokens as their texts, so that the rendered prompt does not tell the
model's own marks from the same characters in a message. Those are told apart before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from headway.errors import RequestTooLarge
from headway.text.chat_template import PromptTemplate
from headway.text.tokenizer import Tokenizer

__all__ = ["chat_tokens"]

_ROLES = ("user", "tool")
"""Those whose words may be anybody's; what the system and the assistant say is the caller's."""
_CUT = "\ue000text:\ue000"
"""Put into the text of a mark: there the prompt is cut, and each piece encoded on its own."""
_BEGIN = 3
"""Characters of a mark by which it is looked for."""


def chat_tokens(
    template: PromptTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    at_most: int | None = None,
    /,
    **options: Any,
) -> list[int]:
    """The prompt that a template makes of messages, with the `options` of its `render`.

    Raises `InvalidRequest`, or `RequestTooLarge` for what cannot come to `at_most` tokens.
    """
    marks = _marks_of(tokenizer.special_texts)
    messages = [marks.cut(message) for message in messages]
    # The template writes the special tokens itself.
    pieces = template.render(messages, **options).split(_CUT)
    if at_most is not None and len(pieces) > at_most:
        raise RequestTooLarge(
            "prompt", f"comes to more than {len(pieces):,} tokens; at most {at_most:,} fit"
        )
    return [
        token
        for piece in pieces
        for token in tokenizer.encode(piece, add_special_tokens=False, at_most=at_most)
    ]


class _Marks:
    """The texts of special tokens; there may be thousands, and a text of nothing but `<`."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1)
        self._lengths = sorted({len(text) for text in self._texts})
        begins = "|".join(sorted({re.escape(text[:_BEGIN]) for text in self._texts}))
        self._begins = re.compile(f"(?={begins})") if begins else None

    def cut(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message with its marks cut, if anybody may have said it."""
        if message.get("role") not in _ROLES or self._begins is None:
            return message
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self._cut(content)}
        if not isinstance(content, list | tuple):
            return message
        return {**message, "content": [self._cut_part(part) for part in content]}

    def _cut_part(self, part: object) -> object:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": self._cut(part["text"])}
        return part

    def _cut(self, text: str) -> str:
        """After the first character of each."""
        assert self._begins is not None
        places = [
            begin.start() + 1
            for begin in self._begins.finditer(text)
            if self._is_at(text, begin.start())
        ]
        return _CUT.join(text[begin:end] for begin, end in pairwise([0, *places, len(text)]))

    def _is_at(self, text: str, place: int) -> bool:
        return any(text[place : place + length] in self._texts for length in self._lengths)


_marks_of = lru_cache(maxsize=8)(_Marks)
