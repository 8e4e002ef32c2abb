"""`POST /v1/completions`: text, or token ids, and what comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.core.plan import TokenLogprobs
from headway.errors import InvalidRequest, RequestTooLarge
from headway.server.api.body import Int, decode
from headway.server.api.logprobs import CompletionLogprobs, PromptLogprob, TextOffsets
from headway.server.api.openai import GenerationRequest, ReplyHead, Usage, usage_of
from headway.server.api.scheduled import job_of
from headway.server.errors import OPENAI_ERRORS, ApiError
from headway.server.event import DONE, Event
from headway.server.generation import Answer, Job, Piece, ServedModel

__all__ = ["MAX_PROMPTS", "Completion", "CompletionRequest", "Completions"]

MAX_PROMPTS = 2048
"""Prompts in one request, as OpenAI."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str | Int | list[Int]]
    logprobs: Int | None = None
    best_of: Int | None = None
    echo: bool | None = None
    """The prompt comes before the output, in the text and in the log-probabilities."""
    suffix: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationRequest.neutral,
        "suffix": (),
    }

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest("best_of", f"{self.best_of} is not n ({self.n or 1})")
        if not self.echo or self.logprobs is None:
            return
        if self.prompt_logprobs not in (None, self.logprobs):
            raise InvalidRequest(
                "prompt_logprobs", f"echo shows {self.logprobs} already (logprobs); leave it out"
            )
        if self.stream and (self.n or 1) > 1:
            raise InvalidRequest("echo", "with logprobs in a stream, n must be 1")

    def _sampling(self) -> dict[str, Any]:
        sampling = super()._sampling()
        if self.logprobs is None:
            return sampling
        prompt = {"prompt_logprobs": self.logprobs} if self.echo else {}
        return {**sampling, "logprobs": self.logprobs, **prompt}

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
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


@dataclass(slots=True)
class CompletionReply:
    """The chunks of a stream are small completions."""

    head: ReplyHead
    request: CompletionRequest
    prompts: Sequence[str | list[int]]
    _offsets: dict[int, TextOffsets] = field(default_factory=dict, init=False)
    """By choice, once it has begun."""

    @property
    def id(self) -> str:
        return self.head.id

    def begin(self, answers: Sequence[Answer]) -> list[Event]:  # noqa: ARG002
        return []

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:
        opens = index not in self._offsets
        if opens and self._awaits_prompt(answer):
            return []
        choice = CompletionChoice(
            index=index,
            text=piece.text,
            logprobs=self._logprobs(index, piece.logprobs),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            token_ids=self.head.shown_ids(piece.token_ids),
        )
        if opens:
            self._put_prompt(choice, answer)
        return [self._event([choice], self.head.chunk_usage(answer))]

    def end(self, answers: Sequence[Answer]) -> list[Event]:
        usage = [self._event([], usage_of(answers))] if self.head.include_usage else []
        return [*usage, DONE]

    def fail(self, error: ApiError) -> list[Event]:
        return [Event(OPENAI_ERRORS.body(error))]

    def whole(self, answers: Sequence[Answer]) -> bytes:
        choices = []
        for index, answer in enumerate(answers):
            choice = CompletionChoice(
                index=index,
                text=answer.text,
                logprobs=self._logprobs(index, answer.logprobs),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
                prompt_logprobs=self.head.shown_prompt([answer]),
                token_ids=self.head.shown_ids(answer.token_ids),
            )
            self._put_prompt(choice, answer)
            choices.append(choice)
        return msgspec.json.encode(self._completion(choices, usage_of(answers)))

    def _logprobs(self, index: int, rows: Sequence[TokenLogprobs]) -> CompletionLogprobs | None:
        """Of the output's next tokens."""
        if index not in self._offsets:
            self._offsets[index] = TextOffsets(
                self.head.tokenizer,
                len(self._echoed(index)),
                skip_special_tokens=self.request.skip_special_tokens is not False,
            )
        if not self.head.logprobs:
            return None
        return CompletionLogprobs.of(rows, self._offsets[index], self.head.tokenizer)

    def _awaits_prompt(self, answer: Answer) -> bool:
        """The prompt is echoed with its log-probabilities, and they are not all there."""
        wanted = bool(self.request.echo) and self.head.logprobs
        return wanted and len(answer.prompt_logprobs) < len(answer.prompt_token_ids) - 1

    def _put_prompt(self, choice: CompletionChoice, answer: Answer) -> None:
        """What a choice, or a stream's first chunk of it, says of its prompt."""
        choice.prompt_token_ids = self.head.shown_ids(answer.prompt_token_ids)
        text = self._echoed(choice.index)
        choice.text = text + choice.text
        if self.request.echo and choice.logprobs is not None:
            prompt = CompletionLogprobs.of_prompt(
                answer.prompt_token_ids, answer.prompt_logprobs, text, self.head.tokenizer
            )
            choice.logprobs = prompt.then(choice.logprobs)

    def _echoed(self, index: int) -> str:
        """The prompt of a choice as it was given; of tokens, their text, marks and all."""
        if not self.request.echo:
            return ""
        prompt = self.prompts[index // (self.request.n or 1)]
        if isinstance(prompt, str):
            return prompt
        return self.head.tokenizer.decode(prompt, skip_special_tokens=False)

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
        head = ReplyHead.of("cmpl", request, params, self._model)
        reply = CompletionReply(head, request, prompts)
        encode = partial(
            self._tokens_of, add_special_tokens=request.add_special_tokens is not False
        )
        return job_of(
            request,
            params=params,
            reply=reply,
            encode=lambda: [encode(prompt) for prompt in prompts],
            names={},
            tenant=request.user,
            num_prompts=len(prompts),
        )

    def _tokens_of(self, prompt: str | Sequence[int], *, add_special_tokens: bool) -> Sequence[int]:
        """Refuses too many of either kind where only this request waits for that."""
        at_most = self._model.max_model_len
        if isinstance(prompt, str):
            return self._model.tokenizer.encode(
                prompt, add_special_tokens=add_special_tokens, at_most=at_most
            )
        if len(prompt) > at_most:
            raise RequestTooLarge(
                "prompt", f"{len(prompt):,} tokens are more than max_model_len ({at_most:,})"
            )
        return prompt
