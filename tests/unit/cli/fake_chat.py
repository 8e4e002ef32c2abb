"""A model and a terminal for chats in tests."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

from headway.cli.terminal import Terminal
from headway.core.params import SamplingParams
from headway.engine.outputs import OutputDelta
from headway.errors import InvalidRequest

__all__ = ["FakeModel", "FakeTerminal", "Step"]

Step = str | Callable[[], None]
"""What one step of an answer adds, or something that happens before the next."""


class FakeModel:
    """Has a token for each word and one for each message, and says what it was given to say."""

    def __init__(self, *answers: Iterable[Step], finish_reason: str = "stop") -> None:
        self._answers = iter(answers)
        self._finish_reason = finish_reason
        self.asked: list[list[tuple[str, str]]] = []
        self.params: list[SamplingParams] = []
        self.closed = 0

    def chat_tokens(self, messages: list[dict[str, str]], /) -> list[int]:
        if any("forbidden" in message["content"] for message in messages):
            raise InvalidRequest("messages", "the chat template says: no")
        self.asked.append([(message["role"], message["content"]) for message in messages])
        return [1 for message in messages for _ in ("<>", *message["content"].split())]

    def stream(self, prompt: list[int], params: SamplingParams, /) -> Iterator[OutputDelta]:
        self.params.append(params)
        return self._stream(next(self._answers), len(prompt))

    def _stream(self, steps: Iterable[Step], num_prompt_tokens: int) -> Iterator[OutputDelta]:
        cached = num_prompt_tokens // 2
        try:
            for step in steps:
                if isinstance(step, str):
                    yield OutputDelta("0", step, (7,), num_cached_tokens=cached)
                else:
                    step()
            error = "the step failed" if self._finish_reason == "error" else None
            reason = self._finish_reason
            yield OutputDelta("0", "", (), reason, num_cached_tokens=cached, error=error)
        finally:
            self.closed += 1


class FakeTerminal(Terminal):
    """Gives the lines it was given, or raises them, and keeps what is shown."""

    def __init__(self, *lines: str | type[BaseException], interactive: bool = True) -> None:
        self._out, self._err = io.StringIO(), io.StringIO()
        super().__init__(io.StringIO(), self._out, self._err, {})
        self._lines = iter(lines)
        self.interactive = interactive

    def read(self, prompt: str) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    @property
    def answers(self) -> str:
        return self._out.getvalue()

    @property
    def talk(self) -> str:
        return self._err.getvalue()
