"""`POST /v1/chat/completions`: a conversation, and the assistant's next turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from headway.core.params import SamplingParams
from headway.errors import InvalidRequest
from headway.server.api.body import decode
from headway.server.api.chat_reply import ChatReply
from headway.server.api.openai import GenerationRequest, ReplyHead, job_of
from headway.server.errors import OPENAI_ERRORS, bad_request
from headway.server.generation import Job, ServedModel

__all__ = ["ChatCompletions", "ChatRequest", "Message"]


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


class ChatCompletions:
    """The endpoint."""

    errors = OPENAI_ERRORS
    _decoder = msgspec.json.Decoder(ChatRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def read(self, body: bytes) -> Job:
        request = decode(body, self._decoder)
        tokenizer, template = self._model.tokenizer, self._model.chat_template
        if template is None:
            raise bad_request(
                f"messages: the model {self._model.name} has no chat template; use /v1/completions",
                "messages",
            )
        messages = [message.for_template() for message in request.messages]

        def encode() -> list[Sequence[int]]:
            # The template writes the special tokens itself.
            return [tokenizer.encode(template.render(messages), add_special_tokens=False)]

        params = request.sampling_params(self._model.sampling_defaults)
        reply = ChatReply(ReplyHead.of("chatcmpl", request, params, self._model))
        return job_of(request, params, reply, encode, "messages")
