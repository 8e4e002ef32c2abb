"""Tool calls, read out of an answer as it comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from headway.text.parts import CallArguments, CallStart, Part, Text, joined, overlap
from headway.text.tools.formats import CallFormat

__all__ = ["ToolCallParser"]

_SPACE = " \t\r\n"


class ToolCallParser:
    """Takes an answer apart into text and calls of the tools in `names`.

    What begins as a call and is none (another name, another form) is text. White space before,
    between and after calls is left out.
    """

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = names
        self._parts: list[Part] = []
        self._num_calls = 0
        self._read: Callable[[str], str] = self._text if form.trigger else self._start
        """Takes what comes next as far as it can, and returns the rest."""
        self._held = ""
        """Read, and not known yet to be text, or a call, or nothing."""
        self._is_tail = False
        """What is held ends a call: it is no text if the output ends here."""
        self._expected = ""
        """What is left of the literal that is being read, without white space."""
        self._then: Callable[[], None] = self._begin_name
        self._name = ""
        self._object = _ObjectEnd()

    def feed(self, text: str) -> list[Part]:
        while text:
            text = self._read(text)
        return self._taken()

    def finish(self) -> list[Part]:
        if (self._held.strip(_SPACE) and not self._is_tail) or not self._num_calls:
            self._parts.append(Text(self._held))
        self._held = ""
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = joined(self._parts), []
        return parts

    # The answer proper.

    def _text(self, text: str) -> str:
        text, self._held = self._held + text, ""
        trigger = self._form.trigger
        begin = text.find(trigger)
        end = len(text) - overlap(text, trigger) if begin < 0 else begin
        safe = len(text[:end].rstrip(_SPACE))
        self._parts.append(Text(text[:safe]))
        if begin < 0:
            self._held = text[safe:]
            return ""
        begin += len(trigger)
        self._held = text[safe:begin]
        self._expect(self._form.opening + self._form.before, self._begin_name)
        return text[begin:]

    def _start(self, text: str) -> str:
        """What the answer begins with says whether it is calls."""
        text, self._held = self._held + text, ""
        rest = text.lstrip(_SPACE)
        ignored = self._form.ignored
        if ignored.startswith(rest):
            self._held = text
            return ""
        rest = rest.removeprefix(ignored).lstrip(_SPACE)
        if not rest:
            self._held = text
            return ""
        self._held = text[: len(text) - len(rest)]
        self._expect(self._form.before, self._begin_name)
        return rest

    def _plain(self, text: str) -> str:
        self._parts.append(Text(text))
        return ""

    def _give_up(self) -> None:
        """What is held is text after all."""
        self._parts.append(Text(self._held))
        self._held, self._is_tail = "", False
        self._read = self._text if self._form.trigger else self._plain

    # A call.

    def _expect(self, literal: str, then: Callable[[], None]) -> None:
        self._expected = "".join(literal.split())
        self._then = then
        self._read = self._literal
        if not self._expected:
            then()

    def _literal(self, text: str) -> str:
        for index, character in enumerate(text):
            if character in _SPACE:
                continue
            if not self._expected.startswith(character):
                self._held += text[:index]
                self._give_up()
                return text[index:]
            self._expected = self._expected[1:]
            if not self._expected:
                self._held += text[: index + 1]
                self._then()
                return text[index + 1 :]
        self._held += text
        return ""

    def _begin_name(self) -> None:
        self._name = ""
        self._read = self._read_name

    def _read_name(self, text: str) -> str:
        for index, character in enumerate(text):
            if character == self._form.between[0] and self._name in self._names:
                self._expect(self._form.between + "{", self._begin_arguments)
                return text[index:]
            self._name += character
            if not any(name.startswith(self._name) for name in self._names):
                self._give_up()
                return text[index:]
            self._held += character
        return ""

    def _begin_arguments(self) -> None:
        self._parts += [CallStart(self._num_calls, self._name), CallArguments(self._num_calls, "{")]
        self._num_calls += 1
        self._held = ""
        self._object = _ObjectEnd()
        self._read = self._arguments

    def _arguments(self, text: str) -> str:
        end = self._object.find(text)
        self._parts.append(CallArguments(self._num_calls - 1, text[:end]))
        if end is None:
            return ""
        self._is_tail = True
        self._expect(self._form.after, self._end_call)
        return text[end:]

    def _end_call(self) -> None:
        self._held = ""
        self._read = self._next

    def _next(self, text: str) -> str:
        """Another call, the end of the calls, or text."""
        rest = text.lstrip(_SPACE)
        self._held += text[: len(text) - len(rest)]
        if not rest:
            return ""
        self._is_tail = False
        closing = self._form.closing
        if closing and rest.startswith(closing):
            self._give_up()
            return rest[len(closing) :]
        self._expect(self._form.again + self._form.before, self._begin_name)
        return rest


class _ObjectEnd:
    """Finds where a JSON object ends that comes in pieces, after its opening brace."""

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """The place after its closing brace; None: it is not in this piece."""
        place = 0
        if self._escaped:
            place, self._escaped = 1, False
        while found := (self._INSIDE if self._in_string else self._OUTSIDE).search(text, place):
            place = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._escaped = place == len(text)
                    place += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        return place
        return None
