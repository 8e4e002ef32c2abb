"""The answer of `/v1/chat/completions`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.server.api.logprobs import ChatLogprobs, PromptLogprob
from headway.server.api.openai import ReplyHead, Usage, usage_of
from headway.server.event import DONE, Event
from headway.server.generation import Answer, Piece

__all__ = ["ChatReply"]


class ChatMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A stream opens with the role and goes on with the content."""

    head: ReplyHead

    @property
    def id(self) -> str:
        return self.head.id

    def begin(self, answers: Sequence[Answer]) -> list[Event]:
        delta = ChatDelta(role="assistant", content="")
        return [
            self._event([ChatChunkChoice(index=index, delta=delta)], self.head.no_usage)
            for index in range(len(answers))
        ]

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:  # noqa: ARG002
        # A token is told of at once, though its text may be none, or be held back: half a
        # character, or what may become a stop string. (vLLM does the same.)
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=piece.text or (None if piece.finish_reason else "")),
            logprobs=self.head.chat_logprobs(piece.logprobs),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )
        return [self._event([choice], self.head.no_usage)]

    def end(self, answers: Sequence[Answer]) -> list[Event]:
        usage = [self._event([], usage_of(answers))] if self.head.include_usage else []
        return [*usage, DONE]

    def whole(self, answers: Sequence[Answer]) -> bytes:
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=answer.text),
                logprobs=self.head.chat_logprobs(answer.logprobs),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return msgspec.json.encode(
            ChatCompletion(
                id=self.head.id,
                created=self.head.created,
                model=self.head.model,
                choices=choices,
                usage=usage_of(answers),
                prompt_logprobs=self.head.shown_prompt(answers),
            )
        )

    def _event(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> Event:
        head = self.head
        chunk = ChatChunk(
            id=head.id, created=head.created, model=head.model, choices=choices, usage=usage
        )
        return Event(msgspec.json.encode(chunk))
