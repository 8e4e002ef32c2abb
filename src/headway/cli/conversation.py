"""A conversation with a model: its turns, and what each answer took. Knows of no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headway.core.params import SamplingParams
from headway.engine.outputs import OutputDelta
from headway.errors import RequestTooLarge

__all__ = ["Answer", "ChatModel", "Conversation", "Turn"]


class ChatModel(Protocol):
    """What is needed of `LLM`."""

    def chat_tokens(self, messages: list[dict[str, str]], /) -> list[int]: ...

    def stream(self, prompt: list[int], params: SamplingParams, /) -> Iterator[OutputDelta]: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said by both."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the last answer took."""

    num_prompt_tokens: int
    num_cached_tokens: int
    """Of the prompt: found in the prefix cache."""
    num_tokens: int
    first_token_s: float | None
    """From the question to the first token; None: there was none."""
    decode_s: float
    """From the first token to the last."""
    finish_reason: str
    """As in `OutputDelta`; `abort`: it was interrupted."""
    error: str | None

    @property
    def tokens_per_s(self) -> float | None:
        """Of decoding; None where there were too few to tell."""
        if self.num_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.num_tokens - 1) / self.decode_s


class Conversation:
    """Turns of a user and a model, after a system prompt.

    A turn is kept once something was answered, be it interrupted; a question without an answer
    is not, since templates want the two to alternate.

    Args:
        params: of every answer. A seed is that of the first; the next take the next, so that
            the conversation can be repeated, and an answer asked for again is another one.
        max_model_len: tokens that prompt and answer may have together.
        now: the time in seconds.

    Attributes:
        system: the system prompt, None for none; may be set, for the questions to come.
        turns: may be read.
        answer: what the last answer took; None before the first.
    """

    def __init__(
        self,
        model: ChatModel,
        params: SamplingParams,
        *,
        max_model_len: int,
        system: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._params = params
        self._max_model_len = max_model_len
        self._now = now
        self._num_asked = 0
        self.system = system
        self.turns: tuple[Turn, ...] = ()
        self.answer: Answer | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """As the chat API has them."""
        return self._messages(self.turns)

    def ask(self, text: str) -> Generator[str, None, None]:
        """The pieces of the answer, one for each step, some of them empty. Closing the iterator
        ends the answer and keeps what was said.

        Raises `InvalidRequest` when the template refuses, and `RequestTooLarge` when the
        context is full; the conversation is as it was then.
        """
        return self._begin(self.turns, text)

    def retry(self) -> Generator[str, None, None]:
        """Asks the last question anew. The old answer stays until something is said."""
        return self._begin(self.turns[:-1], self.turns[-1].user)

    def undo(self) -> Turn:
        """Takes the last turn back."""
        *before, last = self.turns
        self.turns = tuple(before)
        return last

    def clear(self) -> None:
        """Forgets all turns; the system prompt stays."""
        self.turns = ()

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            messages.append({"role": "user", "content": turn.user})
            messages.append({"role": "assistant", "content": turn.assistant})
        return messages

    def _begin(self, turns: tuple[Turn, ...], text: str) -> Generator[str, None, None]:
        messages = [*self._messages(turns), {"role": "user", "content": text}]
        prompt = self._model.chat_tokens(messages)
        if len(prompt) >= self._max_model_len:
            raise RequestTooLarge(
                "messages",
                f"the conversation has {len(prompt):,} tokens with this message, and the context "
                f"{self._max_model_len:,}",
            )
        params = self._params
        if params.seed is not None:
            params = replace(params, seed=params.seed + self._num_asked)
        self._num_asked += 1
        return self._answer(turns, text, prompt, params)

    def _answer(
        self, turns: tuple[Turn, ...], text: str, prompt: list[int], params: SamplingParams
    ) -> Generator[str, None, None]:
        deltas: list[OutputDelta] = []
        times: list[float] = []
        started = self._now()
        try:
            # Left early, by an interrupt or because nobody reads on, it ends the request too.
            for delta in self._model.stream(prompt, params):
                deltas.append(delta)
                times += [self._now()] * len(delta.token_ids)
                yield delta.text
        finally:
            last = deltas[-1] if deltas else None
            self.answer = Answer(
                num_prompt_tokens=len(prompt),
                num_cached_tokens=last.num_cached_tokens if last else 0,
                num_tokens=len(times),
                first_token_s=times[0] - started if times else None,
                decode_s=times[-1] - times[0] if times else 0.0,
                finish_reason=(last and last.finish_reason) or "abort",
                error=str(last.error) if last and last.error else None,
            )
            said = "".join(delta.text for delta in deltas)
            if said or self.answer.finish_reason in ("stop", "length"):
                self.turns = (*turns, Turn(text, said))
