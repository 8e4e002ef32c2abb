"""`POST /v1/chat/completions`: a conversation, and the assistant's next turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from headway.core.params import SamplingParams
from headway.errors import InvalidRequest
from headway.server.api.body import Int, decode
from headway.server.api.chat_message import Message
from headway.server.api.chat_reply import ChatReply
from headway.server.api.conversation import Conversation, Tool, ToolChoice, prepare
from headway.server.api.openai import GenerationRequest, ReplyHead
from headway.server.api.scheduled import job_of
from headway.server.errors import OPENAI_ERRORS
from headway.server.generation import Job, ServedModel
from headway.server.renaming import renaming

__all__ = ["ChatCompletions", "ChatRequest"]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a tool is called, and how."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; None: it has no arguments."""
    strict: bool | None = None
    """Arguments follow the schema in any case."""


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The only kind of tool: the client runs it."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, forbid_unknown_fields=True):
    """Of one of the tools."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: Int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    """To the chat template."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    add_generation_prompt: bool | None = None
    """Open the assistant's answer; None: unless the final message is continued."""
    continue_final_message: bool | None = None
    """The answer goes on where the last message, the assistant's, ends."""
    logprobs: bool | None = None
    top_logprobs: Int | None = None

    audio: Any = None
    chat_template: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationRequest.neutral,
        "add_special_tokens": (False,),
        "audio": (),
        "chat_template": (),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "prediction": (),
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

    def conversation(self) -> Conversation:
        """Raises `InvalidRequest` for a message that its role cannot have."""
        continued = bool(self.continue_final_message)
        opens = self.add_generation_prompt
        return Conversation(
            messages=[
                message.for_template(f"messages[{index}]")
                for index, message in enumerate(self.messages)
            ],
            tools=[_tool(tool.function) for tool in self.tools or ()],
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls is not False,
            reasoning_effort=self.reasoning_effort,
            template_kwargs=self.chat_template_kwargs or {},
            add_generation_prompt=not continued if opens is None else opens,
            continue_final_message=continued,
        )

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """As many tokens as the context leaves, unless a limit is given."""
        given = {**defaults, "max_tokens": None, **self._sampling()}
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        return SamplingParams(**given)

    def _sampling(self) -> dict[str, Any]:
        sampling = super()._sampling()
        return sampling | {"logprobs": self.top_logprobs or 0} if self.logprobs else sampling

    def names(self) -> dict[str, str]:
        """What the engine calls a field → what it is called here."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        tools = {
            f"tools[{index}].{field}": f"tools[{index}].function.{field}"
            for index in range(len(self.tools or ()))
            for field in ("name", "parameters")
        }
        return {
            "max_tokens": limit,
            "logprobs": "top_logprobs",
            "prompt": "messages",
            **tools,
        }


def _tool(function: FunctionDefinition) -> Tool:
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict,
    )


def _choice(given: Literal["none", "auto", "required"] | NamedTool | None) -> ToolChoice:
    match given:
        case None:
            return ToolChoice()
        case NamedTool():
            return ToolChoice("required", given.function.name)
        case mode:
            return ToolChoice(mode)


class ChatCompletions:
    """The endpoint."""

    errors = OPENAI_ERRORS
    _decoder = msgspec.json.Decoder(ChatRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def read(self, body: bytes) -> Job:
        return self.job(decode(body, self._decoder))

    def job(self, request: ChatRequest) -> Job:
        names = request.names()
        with renaming(names):
            params = request.sampling_params(self._model.sampling_defaults)
            encode, params, parser = prepare(request.conversation(), self._model, params)
        reply = ChatReply(ReplyHead.of("chatcmpl", request, params, self._model))
        return job_of(
            request,
            params=params,
            reply=reply,
            encode=encode,
            names=names,
            tenant=request.user,
            parser=parser,
        )
