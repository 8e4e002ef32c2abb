"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from headway.core.params import SamplingParams
from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest
from headway.server.api.body import Int, Name, decode, of_kind
from headway.server.api.conversation import (
    Conversation,
    Prepared,
    Tool,
    ToolChoice,
    check_size,
    prepare,
)
from headway.server.api.messages_input import Message, TextParam, Turns
from headway.server.api.messages_reply import MessagesReply
from headway.server.api.scheduled import ScheduledBody, job_of
from headway.server.errors import ANTHROPIC_ERRORS
from headway.server.generation import Job, ServedModel, check_model
from headway.server.renaming import renaming

__all__ = ["CountTokens", "CountTokensRequest", "Messages", "MessagesRequest", "TokenCount"]


NAMES: Mapping[str, str] = {
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
    "prompt": "messages",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "structured_outputs": "output_config.format",
}
"""A field in the engine's terms → here."""


class CustomTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """The only kind of tool: the client runs it."""

    type: Literal["custom"] | None = None
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    cache_control: Any = None
    defer_loading: Literal[False] | None = None
    eager_input_streaming: Any = None
    """Without effect: a stream gives all inputs as they come."""


_TOOLS = {"custom": CustomTool}


class _Choice(Struct, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Choice, tag="auto"):
    pass


class AnyChoice(_Choice, tag="any"):
    pass


class NamedChoice(_Choice, kw_only=True, tag="tool"):
    name: str


class NoChoice(Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    pass


class AdaptiveThinking(
    Struct, kw_only=True, tag_field="type", tag="adaptive", forbid_unknown_fields=True
):
    display: Literal["summarized"] | None = None
    """What the model thinks is shown whole."""


class EnabledThinking(
    Struct, kw_only=True, tag_field="type", tag="enabled", forbid_unknown_fields=True
):
    budget_tokens: Int
    """Below max_tokens, which alone ends it."""
    display: Literal["summarized"] | None = None


class DisabledThinking(Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    pass


class JsonFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """To the chat template."""
    format: JsonFormat | None = None


class Metadata(Struct, forbid_unknown_fields=True):
    user_id: Name | None = None
    """The tenant, for the policy `fair`."""


class PromptBody(ScheduledBody, kw_only=True):
    """What makes a prompt."""

    model: Name | None = None
    messages: list[Message]
    system: str | list[TextParam] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: AdaptiveThinking | EnabledThinking | DisabledThinking | None = None
    output_config: OutputConfig | None = None

    # Taken and without effect.
    cache_control: Any = None  # whatever is shared is found

    # Taken only where they ask for nothing.
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "context_management": ({},),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }
    kinds: ClassVar[Mapping[str, Mapping[str, type[Struct]]]] = {"tools": _TOOLS}

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise InvalidRequest("messages", "is an empty list")

    @property
    def num_blocks(self) -> int:
        contents = [message.content for message in self.messages]
        return sum(1 if isinstance(content, str) else len(content) for content in contents)

    def conversation(self, turns: Turns) -> Conversation:
        config = self.output_config or OutputConfig()
        choice, parallel = _choice(self.tool_choice)
        thinking = self.thinking
        return Conversation(
            messages=turns.messages,
            tools=[self._tool(index, tool) for index, tool in enumerate(self.tools or ())],
            tool_choice=choice,
            parallel_tool_calls=parallel,
            reasoning_effort=config.effort,
            template_kwargs={}
            if thinking is None
            else {"enable_thinking": not isinstance(thinking, DisabledThinking)},
            add_generation_prompt=not turns.goes_on,
            continue_final_message=turns.goes_on,
        )

    def structure(self) -> StructuredOutputs | None:
        if self.output_config is None or self.output_config.format is None:
            return None
        schema = self.output_config.format.schema
        return StructuredOutputs(json=schema, path="output_config.format.schema")

    def _tool(self, index: int, given: Mapping[str, Any]) -> Tool:
        tool = of_kind(given, _TOOLS, f"tools[{index}]", default="custom")
        return Tool(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )

    def names(self, turns: Turns) -> dict[str, str]:
        """A field's path in the engine's terms → here."""
        schemas = {
            f"tools[{index}].parameters": f"tools[{index}].input_schema"
            for index in range(len(self.tools or ()))
        }
        return {**NAMES, **turns.names, **schemas}


class CountTokensRequest(PromptBody, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`: nothing is generated, so nothing scheduled."""

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **PromptBody.neutral,
        "priority": (),
        "cache_salt": (),
        "deadline_ms": (),
        "queue_timeout_ms": (),
    }


class MessagesRequest(PromptBody, kw_only=True):
    """Body of `POST /v1/messages`."""

    max_tokens: Int
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None

    # Taken and without effect.
    inference_geo: Any = None
    service_tier: Any = None

    # Taken only where they ask for nothing.
    container: Any = None
    diagnostics: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **PromptBody.neutral,
        "container": (),
        "diagnostics": (),
    }

    def check(self) -> None:
        super().check()
        if self.temperature is not None and not 0.0 <= self.temperature <= 1.0:
            raise InvalidRequest("temperature", f"must be between 0 and 1, not {self.temperature}")
        thinking = self.thinking
        if (
            isinstance(thinking, EnabledThinking)
            and not 0 < thinking.budget_tokens < self.max_tokens
        ):
            raise InvalidRequest(
                "thinking.budget_tokens",
                f"must be between 1 and max_tokens - 1, not {thinking.budget_tokens}",
            )

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "structured_outputs": self.structure(),
        }
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{**defaults, "max_tokens": self.max_tokens, **given})


class TokenCount(Struct):
    input_tokens: int


class Messages:
    """The endpoint that generates."""

    errors = ANTHROPIC_ERRORS
    _decoder = msgspec.json.Decoder(MessagesRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def read(self, body: bytes) -> Job:
        request = decode(body, self._decoder)
        with renaming(NAMES):
            params = request.sampling_params(self._model.sampling_defaults)
        names, (encode, params, parser) = _prepared(request, self._model, params)
        identity = f"msg_{uuid.uuid4().hex}"
        return job_of(
            request,
            params=params,
            reply=MessagesReply(identity, self._model.name, request.max_tokens),
            encode=encode,
            names=names,
            tenant=None if request.metadata is None else request.metadata.user_id,
            parser=parser,
        )


class CountTokens:
    """The endpoint that says how long a prompt is."""

    errors = ANTHROPIC_ERRORS
    _decoder = msgspec.json.Decoder(CountTokensRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def answer(self, body: bytes) -> bytes:
        request = decode(body, self._decoder)
        check_model(request.model, self._model)
        names, prepared = _prepared(request, self._model, SamplingParams())
        with renaming(names):
            [tokens] = prepared.encode()
        return msgspec.json.encode(TokenCount(len(tokens)))


def _prepared(
    request: PromptBody, model: ServedModel, params: SamplingParams
) -> tuple[Mapping[str, str], Prepared]:
    """And what fields are called here."""
    with renaming(NAMES):
        check_size(request.num_blocks, len(request.tools or ()), model)
    turns = Turns.of(request.system, request.messages)
    names = request.names(turns)
    with renaming(names):
        return names, prepare(request.conversation(turns), model, params)


def _choice(
    choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None,
) -> tuple[ToolChoice, bool]:
    """And whether there may be several calls."""
    match choice:
        case None:
            return ToolChoice(), True
        case NoChoice():
            return ToolChoice("none"), True
        case NamedChoice():
            mode = ToolChoice("required", choice.name)
        case AnyChoice():
            mode = ToolChoice("required")
        case AutoChoice():
            mode = ToolChoice()
    return mode, not choice.disable_parallel_tool_use
