"""What a client may send: request bodies as OpenAI and vLLM define them.

A field that this server does not implement is taken only at a value that asks for nothing;
any other value, and any field not named here, is a 400 that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from headway.core.params import SamplingParams
from headway.errors import InvalidRequest
from headway.server.errors import ApiError, bad_request

__all__ = ["MAX_PROMPTS", "ChatRequest", "CompletionRequest", "GenerationRequest", "decode"]

MAX_PROMPTS = 2048
"""Prompts in one completions request, as OpenAI; with `n`, completions."""

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


class GenerationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that both endpoints share. null is the same as leaving a field out."""

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
    """Field → the values, beside null, that ask for nothing."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Raises `InvalidRequest` for what is well formed and not supported."""
        for field, values in self.neutral.items():
            value = getattr(self, field)
            if value is not None and not any(_same(value, other) for other in values):
                allowed = " and ".join(_json(other) for other in (None, *values))
                raise InvalidRequest(field, f"{_json(value)} is not supported (only {allowed})")
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


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. Fields that an answer carries as null may come back as null."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    annotations: list[None] | None = None
    audio: None = None
    function_call: None = None
    reasoning: None = None
    reasoning_content: None = None
    refusal: None = None
    tool_calls: list[None] | None = None

    def for_template(self) -> dict[str, object]:
        """What the chat template gets of it."""
        message = {"role": self.role, "content": msgspec.to_builtins(self.content)}
        return message if self.name is None else message | {"name": self.name}


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """Plain text is the only format."""

    type: Literal["text"]


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    audio: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    tool_choice: Any = None
    tools: Any = None
    web_search_options: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationRequest.neutral,
        "add_special_tokens": (False,),
        "audio": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "prediction": (),
        "reasoning_effort": (),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "web_search_options": (),
    }

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise InvalidRequest("messages", "is an empty list")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs to be true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidRequest(
                "max_completion_tokens",
                f"is {self.max_completion_tokens}, max_tokens {self.max_tokens}; give one of them",
            )

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """As many tokens as the context leaves, unless a limit is given."""
        limit = self.max_completion_tokens
        given = {**defaults, "max_tokens": None, **self._sampling()}
        try:
            return SamplingParams(**given if limit is None else {**given, "max_tokens": limit})
        except InvalidRequest as error:
            raise self._renamed(error) from None

    def _sampling(self) -> dict[str, Any]:
        sampling = super()._sampling()
        return sampling | {"logprobs": self.top_logprobs or 0} if self.logprobs else sampling

    def _renamed(self, error: InvalidRequest) -> InvalidRequest:
        """The same with the field's name in this endpoint."""
        message = str(error).removeprefix(f"{error.field}: ")
        match error.field:
            case "max_tokens" if self.max_completion_tokens is not None:
                return InvalidRequest("max_completion_tokens", message)
            case "logprobs":
                return InvalidRequest("top_logprobs", message)
        return error


RequestT = TypeVar("RequestT", bound=GenerationRequest)

_ERROR_PATTERN = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD_PATTERN = re.compile(r"Object (?P<fault>contains unknown|missing required) field `(.*)`")


def decode(body: bytes, decoder: msgspec.json.Decoder[RequestT]) -> RequestT:
    """Reads and checks a body.

    Raises `ApiError` (400) that says where the JSON is broken or which field is wrong, and
    `InvalidRequest` for what is not supported.
    """
    try:
        request = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = f" (of {len(body)} bytes)" if "truncated" in str(error) else ""
        raise bad_request(f"The body is not valid JSON: {error}{where}") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply") from None
    request.check()
    return request


def _wrong_field(error: str) -> ApiError:
    """Turns the decoder's message into ours, with the field's path as `param`."""
    located = _ERROR_PATTERN.fullmatch(error)
    assert located is not None  # the pattern matches any string
    what, path = located["what"], located["path"] or ""
    field = _FIELD_PATTERN.fullmatch(what)
    if field is not None:
        param = f"{path}.{field[2]}" if path else field[2]
        known = field["fault"] == "missing required"
        what = "is required" if known else "is not a field that this server supports"
    else:
        param = path
    return bad_request(f"{param or 'the body'}: {what}", param or None)


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _json(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:80]}…"
