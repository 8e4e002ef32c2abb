"""What the server answers: OpenAI's objects, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import UNSET, Struct, UnsetType

from headway.core.plan import TokenLogprobs
from headway.engine.outputs import OutputDelta
from headway.server.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from headway.text.tokenizer import Tokenizer

__all__ = ["Answer", "ChatReply", "CompletionReply", "Reply", "Shown", "usage_of"]


class PromptTokensDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(slots=True)
class Answer:
    """What one completion has come to so far; grows with each delta."""

    num_prompt_tokens: int
    """0 for the second and further completions of a prompt: it counts once."""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_characters: int = 0
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """The same list for all completions of a prompt; the first one gets them."""

    @classmethod
    def of(cls, num_prompt_tokens: int, num_completions: int) -> list[Answer]:
        """The completions of one prompt."""
        first = cls(num_prompt_tokens)
        others = (cls(0, prompt_logprobs=first.prompt_logprobs) for _ in range(1, num_completions))
        return [first, *others]

    def add(self, delta: OutputDelta) -> None:
        self.num_output_tokens += len(delta.token_ids)
        if self.num_prompt_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.num_characters += len(delta.text)
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

    def chunk(self, index: int, delta: OutputDelta, before: Answer, /) -> Struct:
        """The event for new text, or for the end, of a choice; `before`: without the delta."""
        ...

    def usage_chunk(self, usage: Usage) -> Struct:
        """The event that ends a stream whose client asked for the usage."""
        ...

    def whole(self, answers: Sequence[Answer]) -> Struct:
        """The answer in one piece; choices are in the order of the prompts, and of `n`."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """What of the log-probabilities a request wants to see."""

    tokenizer: Tokenizer
    logprobs: bool
    prompt_logprobs: bool

    def completion(
        self, rows: Sequence[TokenLogprobs], offset: int = 0
    ) -> CompletionLogprobs | None:
        """`offset`: characters of the text that was given out before."""
        return completion_logprobs(rows, self.tokenizer, offset) if self.logprobs else None

    def chat(self, rows: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return chat_logprobs(rows, self.tokenizer) if self.logprobs else None

    def prompt(
        self, rows: Sequence[TokenLogprobs]
    ) -> list[dict[int, PromptLogprob] | None] | UnsetType:
        return prompt_logprobs(rows, self.tokenizer) if self.prompt_logprobs else UNSET


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | UnsetType = UNSET


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
    shown: Shown
    no_usage: UnsetType | None = UNSET
    """What stands for the usage in all chunks but the last: nothing, or null."""

    def opening(self, _index: int, /) -> None:
        return None

    def chunk(self, index: int, delta: OutputDelta, before: Answer, /) -> Struct:
        choice = CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=self.shown.completion(delta.logprobs, before.num_characters),
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
                logprobs=self.shown.completion(answer.logprobs),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
                prompt_logprobs=self.shown.prompt(answer.prompt_logprobs),
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
    """`/v1/chat/completions`: a stream opens with the role and goes on with the content."""

    id: str
    created: int
    model: str
    shown: Shown
    no_usage: UnsetType | None = UNSET
    """What stands for the usage in all chunks but the last: nothing, or null."""

    def opening(self, index: int, /) -> Struct:
        delta = ChatDelta(role="assistant", content="")
        return self._chunk([ChatChunkChoice(index=index, delta=delta)], self.no_usage)

    def chunk(self, index: int, delta: OutputDelta, _before: Answer, /) -> Struct:
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=delta.text or (None if delta.finish_reason else "")),
            logprobs=self.shown.chat(delta.logprobs),
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
                logprobs=self.shown.chat(answer.logprobs),
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
            prompt_logprobs=self.shown.prompt(answers[0].prompt_logprobs),
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )
