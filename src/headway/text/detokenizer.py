"""Tokens to text while they come, with stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

__all__ = ["IncrementalDetokenizer"]


class _Tokens(Protocol):
    """What is needed of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class IncrementalDetokenizer:
    """The text of one output, given out as soon as nothing can take it back.

    What is given out, joined, is the decoded text of all tokens, up to the stop string that
    is complete first; where several end at the same character the longest counts. So the
    result does not depend on how the text was cut into tokens. Held back are bytes of an
    incomplete character and the longest end of the text with which a stop string begins.

    Attributes:
        stopped: the stop string that ended the text; None while none has. What comes after
            it is dropped, and it is part of the text itself only with `include_stop`.
    """

    def __init__(
        self,
        tokenizer: _Tokens,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_StopMatcher(string) for string in stop]
        self._held = ""

    def feed(self, token_ids: Sequence[int], *, may_stop: bool = True) -> str:
        """Takes the next tokens and returns the text that is now safe, possibly none.

        Without `may_stop` a stop string that these tokens complete is text like any other.
        Raises `ValueError` for an id outside the vocabulary.
        """
        data = b"".join(
            self._tokenizer.token_bytes(token)
            for token in token_ids
            if not (self._skip_special_tokens and self._tokenizer.is_special(token))
        )
        return self._release(self._decoder.decode(data), may_stop)

    def flush(self) -> str:
        """Ends the output and returns what was held back; half a character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, text: str, may_stop: bool = True) -> str:
        if self.stopped is not None:
            return ""
        for index, character in enumerate(text):
            complete = [m.stop for m in self._matchers if m.advance(character)]
            if complete and may_stop:
                self.stopped = max(complete, key=len)
                text = self._held + text[: index + 1]
                self._held = ""
                return text if self._include_stop else text.removesuffix(self.stopped)
        text = self._held + text
        safe = len(text) - max((m.matched for m in self._matchers), default=0)
        self._held = text[safe:]
        return text[:safe]


class _StopMatcher:
    """Knuth-Morris-Pratt over a text that comes a character at a time.

    Attributes:
        matched: length of the longest end of the text with which `stop` begins.
    """

    __slots__ = ("_borders", "matched", "stop")

    def __init__(self, stop: str) -> None:
        assert stop, "an empty stop string"
        self.stop = stop
        self.matched = 0
        # Of stop[: i + 1]: the longest proper beginning that is also its end.
        self._borders = [0]
        for character in stop[1:]:
            self._borders.append(self._extended(self._borders[-1], character))

    def advance(self, character: str) -> bool:
        """Takes the next character; True when it completes the stop string."""
        self.matched = self._extended(self.matched, character)
        return self.matched == len(self.stop)

    def _extended(self, length: int, character: str) -> int:
        if length == len(self.stop):  # it was complete, and that did not count
            length = self._borders[-1]
        while length and self.stop[length] != character:
            length = self._borders[length - 1]
        return length + (self.stop[length] == character)
