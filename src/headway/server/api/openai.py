"""What OpenAI's two older endpoints have in common, with vLLM's fields beside OpenAI's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.core.params import SamplingParams
from headway.core.plan import TokenLogprobs
from headway.errors import InvalidRequest
from headway.server.api.body import Int, Name
from headway.server.api.logprobs import (
    ChatLogprobs,
    PromptLogprob,
    chat_logprobs,
    prompt_logprobs,
)
from headway.server.api.scheduled import ScheduledBody
from headway.server.api.structured import (
    ResponseFormat,
    StructuredFields,
    structured_outputs_of,
)
from headway.server.generation import Answer, ServedModel
from headway.text.tokenizer import Tokenizer

__all__ = ["GenerationRequest", "ReplyHead", "StreamOptions", "Usage", "usage_of"]

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
    "include_stop_str_in_output",
    "skip_special_tokens",
)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is framed."""

    include_usage: bool | None = None
    """End with a chunk that carries the usage and no choice."""
    continuous_usage_stats: bool | None = None
    """Every chunk carries the usage of its choice so far."""
    include_obfuscation: bool | None = None
    """Not supported; false is what happens anyway."""


class GenerationRequest(ScheduledBody, kw_only=True):
    """The fields that both endpoints share."""

    model: Name | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[Int, float] | None = None
    allowed_token_ids: list[Int] | None = None
    bad_words: list[str] | None = None
    n: Int | None = None
    prompt_logprobs: Int | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    """BOS before the prompt, where the model wants one."""
    return_token_ids: bool | None = None
    """Show the tokens of prompt and output."""
    structured_outputs: StructuredFields | None = None
    """What the output is held to."""
    response_format: ResponseFormat | None = None
    """OpenAI's way to say so."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = None
    """The tenant, for the policy `fair`."""

    # Taken and without effect.
    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    store: Any = None
    verbosity: Any = None

    # Taken only where they ask for nothing.
    documents: Any = None
    include_reasoning: Any = None
    length_penalty: Any = None
    mm_processor_kwargs: Any = None
    moderation: Any = None
    return_tokens_as_token_ids: Any = None
    spaces_between_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "documents": (),
        "include_reasoning": (True,),
        "length_penalty": (1.0,),
        "mm_processor_kwargs": (),
        "moderation": (),
        "return_tokens_as_token_ids": (False,),
        "spaces_between_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
    }

    def check(self) -> None:
        super().check()
        if self.stream_options is not None:
            if not self.stream:
                raise InvalidRequest("stream_options", "needs stream to be true")
            if self.stream_options.include_obfuscation:
                raise InvalidRequest("stream_options.include_obfuscation", "is not supported")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs", "come with a whole answer; stream must be off")

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """With the model's own `defaults` for what the client leaves out.

        Raises `InvalidRequest` for a value out of range.
        """
        return SamplingParams(**{**defaults, **self._sampling()})

    def _sampling(self) -> dict[str, Any]:
        values = {field: getattr(self, field) for field in _SAMPLING_FIELDS}
        structure = structured_outputs_of(self.structured_outputs, self.response_format)
        values["structured_outputs"] = structure
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


def usage_of_choice(answer: Answer) -> Usage:
    """Its prompt and its own output, so far."""
    prompt, output = len(answer.prompt_token_ids), len(answer.token_ids)
    details = PromptTokensDetails(answer.num_cached_tokens)
    return Usage(prompt, output, prompt + output, details)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What all objects of one answer share, and what of it the client wants to see."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool
    prompt_logprobs: bool
    token_ids: bool
    include_usage: bool
    """A stream ends with a chunk that carries the usage."""
    continuous_usage: bool

    @classmethod
    def of(
        cls, prefix: str, request: GenerationRequest, params: SamplingParams, model: ServedModel
    ) -> ReplyHead:
        options = request.stream_options or StreamOptions()
        return cls(
            id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model.name,
            tokenizer=model.tokenizer,
            logprobs=params.logprobs is not None,
            prompt_logprobs=request.prompt_logprobs is not None,
            token_ids=bool(request.return_token_ids),
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.continuous_usage_stats),
        )

    @property
    def no_usage(self) -> UnsetType | None:
        """What stands for the usage in a chunk without it: nothing, or null."""
        return None if self.include_usage else UNSET

    def chunk_usage(self, answer: Answer) -> Usage | UnsetType | None:
        """Of one choice, in each of its chunks."""
        return usage_of_choice(answer) if self.continuous_usage else self.no_usage

    def shown_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self.token_ids else UNSET

    def chat_logprobs(self, rows: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return chat_logprobs(rows, self.tokenizer) if self.logprobs else None

    def shown_prompt(
        self, answers: Sequence[Answer]
    ) -> list[dict[int, PromptLogprob] | None] | UnsetType:
        """Of the prompt of these answers."""
        if not self.prompt_logprobs:
            return UNSET
        return prompt_logprobs(answers[0].prompt_logprobs, self.tokenizer)
