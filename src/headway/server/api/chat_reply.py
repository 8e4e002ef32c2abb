"""The answer of `/v1/chat/completions`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.server.api.logprobs import ChatLogprobs, PromptLogprob
from headway.server.api.openai import ReplyHead, Usage, usage_of
from headway.server.errors import OPENAI_ERRORS, ApiError
from headway.server.event import DONE, Event
from headway.server.generation import Answer, Piece
from headway.text.parts import CallArguments, CallStart, Part, Reasoning, Text

__all__ = ["ChatReply"]


class FunctionCall(Struct):
    name: str
    arguments: str
    """JSON, as far as the answer goes."""


class ToolCall(Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    """None: there is something else, and no text."""
    reasoning: str | UnsetType = UNSET
    """What the model thought before it answered."""
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET

    @classmethod
    def of(cls, answer: Answer) -> ChatMessage:
        text, reasoning = answer.text, ""
        calls: list[ToolCall] = []
        for part in answer.parts:
            match part:
                case Reasoning(more):
                    reasoning += more
                case CallStart(_, name):
                    calls.append(ToolCall(id=_call_id(), function=FunctionCall(name, "")))
                case CallArguments(call, more):
                    calls[call].function.arguments += more
        return cls(
            content=text if text or not (calls or reasoning) else None,
            reasoning=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionCallDelta(Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str


class ToolCallDelta(Struct, kw_only=True, omit_defaults=True):
    """The first one of a call has its id, type and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class ChatDelta(Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None

    @classmethod
    def of(cls, part: Part) -> ChatDelta:
        match part:
            case Text(text):
                return cls(content=text)
            case Reasoning(text):
                return cls(reasoning=text)
            case CallStart(call, name):
                begun = FunctionCallDelta(name=name, arguments="")
                return cls(
                    tool_calls=[
                        ToolCallDelta(index=call, id=_call_id(), type="function", function=begun)
                    ]
                )
            case CallArguments(call, text):
                more = FunctionCallDelta(arguments=text)
                return cls(tool_calls=[ToolCallDelta(index=call, function=more)])


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


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
            self._event(
                [ChatChunkChoice(index=index, delta=delta)],
                self.head.chunk_usage(answer),
                self.head.shown_ids(answer.prompt_token_ids),
            )
            for index, answer in enumerate(answers)
        ]

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:
        # A token is told of at once, though its text may be none, or be held back: half a
        # character, or what may become a stop string. (vLLM does the same.)
        nothing = ChatDelta(content=None if piece.finish_reason else "")
        first, *more = [ChatDelta.of(part) for part in piece.parts] or [nothing]
        choices = [
            ChatChunkChoice(
                index=index,
                delta=first,
                logprobs=self.head.chat_logprobs(piece.logprobs),
                token_ids=self.head.shown_ids(piece.token_ids),
            ),
            *(ChatChunkChoice(index=index, delta=delta) for delta in more),
        ]
        choices[-1].finish_reason = piece.finish_reason
        choices[-1].stop_reason = piece.stop_reason
        return [self._event([choice], self.head.chunk_usage(answer)) for choice in choices]

    def end(self, answers: Sequence[Answer]) -> list[Event]:
        usage = [self._event([], usage_of(answers))] if self.head.include_usage else []
        return [*usage, DONE]

    def fail(self, error: ApiError) -> list[Event]:
        return [Event(OPENAI_ERRORS.body(error))]

    def whole(self, answers: Sequence[Answer]) -> bytes:
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage.of(answer),
                logprobs=self.head.chat_logprobs(answer.logprobs),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
                token_ids=self.head.shown_ids(answer.token_ids),
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
                prompt_token_ids=self.head.shown_ids(answers[0].prompt_token_ids),
            )
        )

    def _event(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | UnsetType | None,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> Event:
        chunk = ChatChunk(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=prompt_token_ids,
        )
        return Event(msgspec.json.encode(chunk))


def _call_id() -> str:
    return f"call_{uuid4().hex[:24]}"
