"""What OpenAI's two older endpoints have in common, with vLLM's fields beside OpenAI's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.core.params import SamplingParams
from headway.core.plan import TokenLogprobs
from headway.errors import InvalidRequest
from headway.server.api.body import Body
from headway.server.api.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from headway.server.generation import Answer, Job, Reply, ServedModel
from headway.text.parts import OutputParser, PlainText
from headway.text.tokenizer import Tokenizer

__all__ = ["GenerationRequest", "ReplyHead", "StreamOptions", "Usage", "job_of", "usage_of"]

MAX_DEADLINE_MS = 24 * 3600 * 1000

_SAMPLING_FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "n",
    "prompt_logprobs",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is framed."""

    include_usage: bool | None = None
    """End with a chunk that carries the usage and no choice."""
    include_obfuscation: bool | None = None
    """Not supported; false is what happens anyway."""


class GenerationRequest(Body, kw_only=True):
    """The fields that both endpoints share."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    n: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None
    """The tenant, for the policy `fair`."""
    deadline_ms: int | None = None
    """Milliseconds from arrival to the first token, for the policy `deadline`."""

    # Taken and without effect.
    metadata: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    store: Any = None
    verbosity: Any = None

    # Taken only where they ask for nothing.
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    add_special_tokens: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "include_stop_str_in_output": (False,),
        "add_special_tokens": (True,),
    }

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        super().check()
        if self.stream_options is not None:
            if not self.stream:
                raise InvalidRequest("stream_options", "needs stream to be true")
            if self.stream_options.include_obfuscation:
                raise InvalidRequest("stream_options.include_obfuscation", "is not supported")
        if self.deadline_ms is not None and not 0 < self.deadline_ms <= MAX_DEADLINE_MS:
            raise InvalidRequest(
                "deadline_ms", f"must be between 1 and {MAX_DEADLINE_MS}, not {self.deadline_ms}"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs", "come with a whole answer; stream must be off")

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """With the model's own `defaults` for what the client leaves out.

        Raises `InvalidRequest` for a value out of range.
        """
        return SamplingParams(**{**defaults, **self._sampling()})

    def _sampling(self) -> dict[str, Any]:
        values = {field: getattr(self, field) for field in _SAMPLING_FIELDS}
        return {field: value for field, value in values.items() if value is not None}


class PromptTokensDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(answers: Sequence[Answer]) -> Usage:
    """Over all prompts of one HTTP request."""
    prompt = sum(len(answer.prompt_token_ids) for answer in answers if answer.counts_prompt)
    output = sum(len(answer.token_ids) for answer in answers)
    cached = sum(answer.num_cached_tokens for answer in answers)
    return Usage(prompt, output, prompt + output, PromptTokensDetails(cached))


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What all objects of one answer share, and what of it the client wants to see."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool
    prompt_logprobs: bool
    include_usage: bool
    """A stream ends with a chunk that carries the usage."""

    @classmethod
    def of(
        cls, prefix: str, request: GenerationRequest, params: SamplingParams, model: ServedModel
    ) -> ReplyHead:
        return cls(
            f"{prefix}-{uuid.uuid4().hex}",
            int(time.time()),
            model.name,
            model.tokenizer,
            params.logprobs is not None,
            params.prompt_logprobs is not None,
            request.include_usage,
        )

    @property
    def no_usage(self) -> UnsetType | None:
        """What stands for the usage in all chunks but the last: nothing, or null."""
        return None if self.include_usage else UNSET

    def completion_logprobs(
        self, rows: Sequence[TokenLogprobs], offset: int = 0
    ) -> CompletionLogprobs | None:
        """`offset`: characters of the text that was given out before."""
        return completion_logprobs(rows, self.tokenizer, offset) if self.logprobs else None

    def chat_logprobs(self, rows: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return chat_logprobs(rows, self.tokenizer) if self.logprobs else None

    def shown_prompt(
        self, answers: Sequence[Answer]
    ) -> list[dict[int, PromptLogprob] | None] | UnsetType:
        """Of the prompt of these answers."""
        if not self.prompt_logprobs:
            return UNSET
        return prompt_logprobs(answers[0].prompt_logprobs, self.tokenizer)


def job_of(
    request: GenerationRequest,
    params: SamplingParams,
    reply: Reply,
    encode: Callable[[], Sequence[Sequence[int]]],
    prompt_field: str,
    parser: Callable[[], OutputParser] = PlainText,
) -> Job:
    return Job(
        model=request.model,
        stream=bool(request.stream),
        params=params,
        encode=encode,
        prompt_field=prompt_field,
        reply=reply,
        parser=parser,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        tenant=request.user or "",
        deadline_s=None if request.deadline_ms is None else request.deadline_ms / 1000,
    )
