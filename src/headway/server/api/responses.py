"""`POST /v1/responses`: OpenAI's newer API, of which nothing is kept between requests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from headway.core.params import SamplingParams
from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest
from headway.server.api.body import Int, Name, decode, of_kind
from headway.server.api.conversation import (
    Conversation,
    Tool,
    ToolChoice,
    check_size,
    prepare,
)
from headway.server.api.responses_input import ITEMS, Turns
from headway.server.api.responses_reply import Response, ResponsesReply
from headway.server.api.scheduled import ScheduledBody, job_of
from headway.server.errors import OPENAI_ERRORS
from headway.server.generation import Job, ServedModel
from headway.server.renaming import renaming

__all__ = ["Responses", "ResponsesRequest"]


NAMES: Mapping[str, str] = {
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "structured_outputs": "text.format",
}
"""A field in the engine's terms → here."""


class FunctionTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """The only kind of tool: the client runs it."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


_TOOLS = {"function": FunctionTool}


class NamedFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    type: Literal["function"]
    name: str


class PlainFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class JsonFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


class SchemaFormat(
    Struct, kw_only=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    format: PlainFormat | JsonFormat | SchemaFormat | None = None
    verbosity: Any = None
    """Without effect."""

    def structure(self) -> StructuredOutputs | None:
        match self.format:
            case JsonFormat():
                return StructuredOutputs(json_object=True, path="text.format")
            case SchemaFormat(schema=schema):
                return StructuredOutputs(json=schema, path="text.format.schema")
            case _:
                return None


class ReasoningOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    """To the chat template."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """The reasoning is given whole in any case."""


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: Literal[False] | None = None


Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
"""The latter is taken from clients that keep the conversation; they get it in the clear."""


class ResponsesRequest(ScheduledBody, kw_only=True):
    """Body of `POST /v1/responses`."""

    model: Name | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Int | None = None
    include: list[Includable] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    """Given back."""
    user: Name | None = None
    """The tenant, for the policy `fair`."""
    stop: str | list[str] | None = None
    """vLLM's, as `ignore_eos`: load generators send both."""
    ignore_eos: bool | None = None

    # Taken and without effect.
    max_tool_calls: Any = None  # of tools that run at the server
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None  # the answer says false

    # Taken only where they ask for nothing.
    background: Any = None
    context_management: Any = None
    conversation: Any = None
    moderation: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    truncation: Any = None

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
        "truncation": ("disabled",),
    }
    kinds: ClassVar[Mapping[str, Mapping[str, type[Struct]]]] = {"input": ITEMS, "tools": _TOOLS}

    @property
    def logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    @property
    def num_items(self) -> int:
        return 1 if isinstance(self.input, str) else len(self.input)

    def check(self) -> None:
        super().check()
        if self.input == []:
            raise InvalidRequest("input", "is an empty list")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "needs stream to be true")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "top_logprobs", "needs include to hold 'message.output_text.logprobs'"
            )

    def functions(self) -> list[FunctionTool]:
        """Raises `InvalidRequest` for other tools, and `ApiError` for what is wrong in one."""
        return [
            of_kind(tool, _TOOLS, f"tools[{index}]") for index, tool in enumerate(self.tools or ())
        ]

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """As many tokens as the context leaves, unless a limit is given."""
        given = {
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop": self.stop,
            "ignore_eos": self.ignore_eos,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "structured_outputs": None if self.text is None else self.text.structure(),
        }
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{**defaults, "max_tokens": None, **given})


class Responses:
    """The endpoint."""

    errors = OPENAI_ERRORS
    _decoder = msgspec.json.Decoder(ResponsesRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def read(self, body: bytes) -> Job:
        request = decode(body, self._decoder)
        with renaming(NAMES):
            params = request.sampling_params(self._model.sampling_defaults)
            check_size(request.num_items, len(request.tools or ()), self._model)
        functions, turns = request.functions(), Turns.of(request.instructions, request.input)
        names = {**NAMES, **turns.names}
        with renaming(names):
            conversation = _conversation(request, functions, turns)
            encode, params, parser = prepare(conversation, self._model, params)
        begun = _begun(request, functions, params, self._model)
        return job_of(
            request,
            params=params,
            reply=ResponsesReply(begun, self._model.tokenizer, logprobs=request.logprobs),
            encode=encode,
            names=names,
            tenant=request.user,
            parser=parser,
        )


def _conversation(
    request: ResponsesRequest, functions: Sequence[FunctionTool], turns: Turns
) -> Conversation:
    match request.tool_choice:
        case None:
            choice = ToolChoice()
        case NamedFunction(name=name):
            choice = ToolChoice("required", name)
        case mode:
            choice = ToolChoice(mode)
    return Conversation(
        messages=turns.messages,
        tools=[
            Tool(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            )
            for tool in functions
        ],
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
    )


def _begun(
    request: ResponsesRequest,
    functions: Sequence[FunctionTool],
    params: SamplingParams,
    model: ServedModel,
) -> Response:
    """The answer before there is any of it."""
    reasoning = request.reasoning or ReasoningOptions()
    text = request.text or TextOptions()
    return Response(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        model=model.name,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning={"effort": reasoning.effort, "summary": reasoning.summary},
        temperature=params.temperature,
        text={"format": text.format or PlainFormat(), "verbosity": text.verbosity},
        tool_choice=request.tool_choice or "auto",
        tools=functions,
        top_logprobs=request.top_logprobs or 0,
        top_p=params.top_p,
        user=request.user,
    )
