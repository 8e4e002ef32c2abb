"""`POST /v1/completions`: text, or token ids, and what comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.errors import InvalidRequest
from headway.server.api.body import decode
from headway.server.api.logprobs import CompletionLogprobs, PromptLogprob
from headway.server.api.openai import GenerationRequest, ReplyHead, Usage, job_of, usage_of
from headway.server.errors import OPENAI_ERRORS
from headway.server.event import DONE, Event
from headway.server.generation import Answer, Job, Piece, ServedModel

__all__ = ["MAX_PROMPTS", "CompletionRequest", "Completions"]

MAX_PROMPTS = 2048
"""Prompts in one request, as OpenAI."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None
    echo: Any = None
    suffix: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationRequest.neutral,
        "echo": (False,),
        "suffix": (),
    }

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest("best_of", f"{self.best_of} is not n ({self.n or 1})")

    def _sampling(self) -> dict[str, Any]:
        sampling = super()._sampling()
        return sampling if self.logprobs is None else sampling | {"logprobs": self.logprobs}

    def prompts(self) -> list[str | list[int]]:
        """The prompts in order, each a text or its tokens.

        Raises `InvalidRequest` for none, too many, or a mixture.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt", "is an empty list")
        tokens = [item for item in self.prompt if isinstance(item, int)]
        if len(tokens) == len(self.prompt):
            return [tokens]
        if len({type(item) for item in self.prompt}) > 1:
            raise InvalidRequest(
                "prompt",
                "must be a string, a list of strings, a list of token ids or a list of such "
                "lists, not a mixture",
            )
        if len(self.prompt) > MAX_PROMPTS:
            raise InvalidRequest(
                "prompt", f"holds {len(self.prompt)} prompts; at most {MAX_PROMPTS} go together"
            )
        return [item for item in self.prompt if not isinstance(item, int)]


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
    """The chunks of a stream are small completions."""

    head: ReplyHead

    @property
    def id(self) -> str:
        return self.head.id

    def begin(self, answers: Sequence[Answer]) -> list[Event]:  # noqa: ARG002
        return []

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:  # noqa: ARG002
        choice = CompletionChoice(
            index=index,
            text=piece.text,
            logprobs=self.head.completion_logprobs(piece.logprobs, piece.text_offset),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )
        return [self._event([choice], self.head.no_usage)]

    def end(self, answers: Sequence[Answer]) -> list[Event]:
        usage = [self._event([], usage_of(answers))] if self.head.include_usage else []
        return [*usage, DONE]

    def whole(self, answers: Sequence[Answer]) -> bytes:
        choices = [
            CompletionChoice(
                index=index,
                text=answer.text,
                logprobs=self.head.completion_logprobs(answer.logprobs),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
                prompt_logprobs=self.head.shown_prompt([answer]),
            )
            for index, answer in enumerate(answers)
        ]
        return msgspec.json.encode(self._completion(choices, usage_of(answers)))

    def _event(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Event:
        return Event(msgspec.json.encode(self._completion(choices, usage)))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        head = self.head
        return Completion(
            id=head.id, created=head.created, model=head.model, choices=choices, usage=usage
        )


class Completions:
    """The endpoint."""

    errors = OPENAI_ERRORS
    _decoder = msgspec.json.Decoder(CompletionRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def read(self, body: bytes) -> Job:
        request = decode(body, self._decoder)
        prompts = request.prompts()
        params = request.sampling_params(self._model.sampling_defaults)
        reply = CompletionReply(ReplyHead.of("cmpl", request, params, self._model))
        return job_of(request, params, reply, lambda: self._encode(prompts), "prompt")

    def _encode(self, prompts: Sequence[str | list[int]]) -> list[Sequence[int]]:
        return [
            self._model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]
