"""What the server answers: OpenAI's objects, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import UNSET, Struct, UnsetType

from headway.engine.outputs import OutputDelta

__all__ = ["Answer", "ChatReply", "CompletionReply", "Reply", "usage_of"]


class PromptTokensDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(slots=True)
class Answer:
    """What one prompt has come to so far; grows with each delta."""

    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: OutputDelta) -> None:
        self.num_output_tokens += len(delta.token_ids)
        self.num_cached_tokens = delta.num_cached_tokens
        self.texts.append(delta.text)
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


def usage_of(answers: Sequence[Answer]) -> Usage:
    """Over all prompts of one HTTP request."""
    prompt = sum(answer.num_prompt_tokens for answer in answers)
    output = sum(answer.num_output_tokens for answer in answers)
    cached = sum(answer.num_cached_tokens for answer in answers)
    return Usage(prompt, output, prompt + output, PromptTokensDetails(cached))


class Reply(Protocol):
    """Shapes the answer to one HTTP request."""

    @property
    def id(self) -> str: ...

    def opening(self, index: int, /) -> Struct | None:
        """The event before the first one of a choice, if there is any."""
        ...

    def chunk(self, index: int, delta: OutputDelta) -> Struct:
        """The event for new text, or for the end, of a choice."""
        ...

    def usage_chunk(self, usage: Usage) -> Struct:
        """The event that ends a stream whose client asked for the usage."""
        ...

    def whole(self, answers: Sequence[Answer]) -> Struct:
        """The answer in one piece; choices are in the order of the prompts."""
        ...


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None
    stop_reason: int | str | None


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class CompletionReply:
    """`/v1/completions`: the chunks of a stream are small completions."""

    id: str
    created: int
    model: str
    no_usage: UnsetType | None = UNSET
    """What stands for the usage in all chunks but the last: nothing, or null."""

    def opening(self, _index: int, /) -> None:
        return None

    def chunk(self, index: int, delta: OutputDelta) -> Struct:
        choice = CompletionChoice(
            index=index,
            text=delta.text,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )
        return self._completion([choice], self.no_usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        return self._completion([], usage)

    def whole(self, answers: Sequence[Answer]) -> Struct:
        choices = [
            CompletionChoice(
                index=index,
                text="".join(answer.texts),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return self._completion(choices, usage_of(answers))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )


class ChatMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: None = None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: None = None
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
    """`/v1/chat/completions`: a stream opens with the role and goes on with the content."""

    id: str
    created: int
    model: str
    no_usage: UnsetType | None = UNSET
    """What stands for the usage in all chunks but the last: nothing, or null."""

    def opening(self, index: int, /) -> Struct:
        delta = ChatDelta(role="assistant", content="")
        return self._chunk([ChatChunkChoice(index=index, delta=delta)], self.no_usage)

    def chunk(self, index: int, delta: OutputDelta) -> Struct:
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=delta.text or None),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )
        return self._chunk([choice], self.no_usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        return self._chunk([], usage)

    def whole(self, answers: Sequence[Answer]) -> Struct:
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content="".join(answer.texts)),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage_of(answers),
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )
