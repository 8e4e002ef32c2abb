"""What every API with messages asks of a model, in one form: the messages, the tools, and how to
answer.

Each API maps its body onto a `Conversation`; `prepare` makes of it what a `Job` needs: the prompt,
the sampling parameters with what tools ask of them, and what takes the output apart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import msgspec

from headway.core.params import SamplingParams
from headway.core.structured import StructuredOutputs, Thoughts, ToolSignature
from headway.errors import InvalidRequest
from headway.server.api.body import MAX_DEPTH, is_too_deep
from headway.server.generation import ServedModel
from headway.text.chat_prompt import chat_tokens
from headway.text.chat_template import PromptTemplate
from headway.text.dialect import Dialect
from headway.text.parts import OutputParser, PlainText
from headway.text.reasoning import ReasoningParser, ThinkState, state_after
from headway.text.tokenizer import Tokenizer
from headway.text.tools.formats import FORMATS, CallFormat
from headway.text.tools.parser import ToolCallParser
from headway.text.tools.prompt import described, plain_history

__all__ = ["Conversation", "Prepared", "Tool", "ToolChoice", "check_size", "prepare", "tool_call"]

MAX_TOOLS = 128
"""As OpenAI."""
MAX_KWARGS_BYTES = 1 << 16
"""Of a template's further variables, as JSON."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OWN_VARIABLES = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
)
"""Variables of a template that nobody gives as `chat_template_kwargs`."""
_PROBE = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """The JSON schema of its arguments; None: an object without properties."""
    strict: bool | None = None
    """Without effect: arguments follow the schema in any case."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may call, must call, or must call one tool."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    """With `required`: only this tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What an API's body says, in terms that no API owns.

    Errors name a field as it is called here (`messages[3].content`, `tools[0].name`,
    `tools[0].parameters`, `tool_choice`, `chat_template_kwargs`); each API puts its own in.
    """

    messages: Sequence[Mapping[str, Any]]
    """As Hugging Face's templates expect them: `role` (system, developer, user, assistant, tool),
    `content` (text, or parts of type text; an assistant's may be None), and where they are known
    `name`, `reasoning`, `tool_calls` (see `tool_call`), `tool_call_id`."""
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    """To the template; `none` also tells it not to let the model think."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The answer goes on where the last message, the assistant's, ends."""

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model is told of: none where it must not call any."""
        return () if self.tool_choice.mode == "none" else self.tools


class Prepared(NamedTuple):
    """What a `Job` takes."""

    encode: Callable[[], list[Sequence[int]]]
    """Renders and tokenises; raises `InvalidRequest`."""
    params: SamplingParams
    parser: Callable[[], OutputParser]


def check_size(turns: int, tools: int, model: ServedModel) -> None:
    """Refuses, before any work, what is too much: a turn is a token at least.

    Raises `InvalidRequest`.
    """
    if turns > model.max_model_len:
        raise InvalidRequest(
            "messages", f"{turns:,} are too many; {model.max_model_len:,} at most fit the context"
        )
    if tools > MAX_TOOLS:
        raise InvalidRequest("tools", f"holds {tools:,} tools; at most {MAX_TOOLS}")


def tool_call(call_id: str, name: str, arguments: str, path: str) -> dict[str, Any]:
    """A call in an assistant's `tool_calls`, as templates expect it: its arguments an object.

    `arguments` is their JSON; of an object that max_tokens cut, which is none, templates get an
    empty one. Raises `InvalidRequest`, naming `path`, where it is no object.
    """
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        if not _is_cut(arguments, str(error)):
            raise InvalidRequest(path, f"is not valid JSON: {error}") from None
        arguments, value = "{}", {}
    if not isinstance(value, dict):
        raise InvalidRequest(path, "must be a JSON object")
    if is_too_deep(arguments.encode()):  # templates recurse into it
        raise InvalidRequest(path, f"is nested too deeply: at most {MAX_DEPTH} levels")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}


def _is_cut(arguments: str, error: str) -> bool:
    """An object's JSON that ends before its end, where it is refused with this error."""
    if r"\ud" in arguments.lower() and arguments.rstrip().endswith("}"):
        return False  # it holds half of a surrogate pair, which is refused in the same words
    ends_in_number = arguments.endswith(("-", "+", ".", "e", "E"))
    return arguments.lstrip().startswith("{") and ("truncated" in error or ends_in_number)


def prepare(conversation: Conversation, model: ServedModel, params: SamplingParams) -> Prepared:
    """What the model is to be asked.

    `params` carry the caller's structured output, if any: it then holds for the answer proper,
    after what the model thinks.

    Raises `InvalidRequest` for what is wrong with tools or contradicts itself, or where the model
    has no chat template.
    """
    check_size(len(conversation.messages), len(conversation.tools), model)
    template = model.chat_template
    if template is None:
        raise InvalidRequest(
            "messages", f"the model {model.name} has no chat template; use /v1/completions"
        )
    _check(conversation)
    dialect = template.dialect
    if model.tool_call_parser != "auto":
        dialect = dialect.speaking(FORMATS[model.tool_call_parser])
    variables = _variables(conversation)
    thinks = _think_state(conversation, template, dialect, variables)
    params = _shown(params, conversation, dialect, model.tokenizer)
    params = _constrained(params, conversation, dialect, thinks)
    return Prepared(
        lambda: [_encoded(conversation, template, dialect, variables, model)],
        params,
        lambda: _parser(conversation, dialect, thinks),
    )


def _check(conversation: Conversation) -> None:
    _check_tools(conversation.tools)
    choice = conversation.tool_choice
    names = [tool.name for tool in conversation.tools]
    if choice.mode == "required" and not names:
        raise InvalidRequest("tool_choice", "needs tools")
    if choice.name is not None and choice.name not in names:
        known = ", ".join(map(repr, names))
        raise InvalidRequest("tool_choice", f"{choice.name!r:.80} is no tool ({known} are)")
    if conversation.continue_final_message:
        _check_continued(conversation)
    kwargs = conversation.template_kwargs
    for name in _OWN_VARIABLES:
        if name in kwargs:
            raise InvalidRequest(f"chat_template_kwargs.{name}", "cannot be given here")
    if len(msgspec.json.encode(kwargs)) > MAX_KWARGS_BYTES:
        raise InvalidRequest("chat_template_kwargs", f"has more than {MAX_KWARGS_BYTES} bytes")


def _check_tools(tools: Sequence[Tool]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise InvalidRequest(
                f"tools[{index}].name",
                f"must be 1 to 64 letters, digits, _ and -, not {tool.name!r:.80}",
            )
        if tool.name in seen:
            raise InvalidRequest(f"tools[{index}].name", f"{tool.name!r} is there twice")
        seen.add(tool.name)
        kind = (tool.parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidRequest(
                f"tools[{index}].parameters.type", f"must be 'object', not {kind!r:.80}"
            )


def _check_continued(conversation: Conversation) -> None:
    if conversation.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message", "cannot go with add_generation_prompt, which opens a new one"
        )
    last = conversation.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls") or not last.get("content"):
        raise InvalidRequest(
            "continue_final_message", "the last message must be the assistant's, and hold text"
        )
    if conversation.tool_choice.mode == "required":
        raise InvalidRequest("tool_choice", "cannot go with continue_final_message")


def _variables(conversation: Conversation) -> dict[str, Any]:
    """Those of the template, but for messages and tools."""
    effort = conversation.reasoning_effort
    given: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        given["enable_thinking"] = False  # what Qwen3's template and those after it ask for
    return given | dict(conversation.template_kwargs)


def _think_state(
    conversation: Conversation,
    template: PromptTemplate,
    dialect: Dialect,
    variables: Mapping[str, Any],
) -> ThinkState:
    if dialect.thinks is None:
        return ThinkState.CLOSED
    if conversation.continue_final_message:
        begun = _text(conversation.messages[-1]["content"])
        is_open = state_after(begun, dialect.thinks) is ThinkState.OPEN
        return ThinkState.OPEN if is_open else ThinkState.CLOSED
    if not conversation.add_generation_prompt:
        return ThinkState.MAY_BEGIN
    try:
        prompt = template.render(_PROBE, **variables)
    except InvalidRequest:  # it wants other messages; with what it is about, it may say so
        return ThinkState.MAY_BEGIN
    return state_after(prompt, dialect.thinks)


def _shown(
    params: SamplingParams, conversation: Conversation, dialect: Dialect, tokenizer: Tokenizer
) -> SamplingParams:
    """With special tokens in the text where the parser needs them."""
    marks = dialect.calls.marks if conversation.offered else []
    if dialect.thinks is not None:
        marks = [*marks, dialect.thinks.opener, dialect.thinks.closer]
    if not any(mark in tokenizer.special_texts for mark in marks):
        return params
    return replace(params, skip_special_tokens=False)


def _constrained(
    params: SamplingParams, conversation: Conversation, dialect: Dialect, thinks: ThinkState
) -> SamplingParams:
    """The answer held to what the caller asks, or to calls of the tools; thoughts are free."""
    structure = _structure(params.structured_outputs, conversation, dialect.calls)
    if structure is None:
        return params
    if dialect.thinks is not None and thinks is not ThinkState.CLOSED:
        thoughts = Thoughts(
            opener=dialect.thinks.opener,
            closer=dialect.thinks.closer,
            opened=thinks is ThinkState.OPEN,
        )
        structure = replace(structure, thoughts=thoughts)
    return replace(params, structured_outputs=structure)


def _structure(
    asked: StructuredOutputs | None, conversation: Conversation, form: CallFormat
) -> StructuredOutputs | None:
    choice = conversation.tool_choice
    tools = tuple(
        ToolSignature(tool.name, _schema(tool), f"tools[{index}].parameters")
        for index, tool in enumerate(conversation.offered)
        if choice.name in (None, tool.name)
    )
    if not tools:
        return asked
    required = choice.mode == "required"
    if (
        asked is not None
        and asked.kind in ("json", "json_object")
        and not (form.trigger or required)
    ):
        raise asked.wrong(
            "cannot go with tools that may be called: this model's calls are JSON, too, and begin "
            "with nothing that tells them from an answer; tool_choice none or required works"
        )
    calls = form.calls_of(
        tools, required=required, parallel=conversation.parallel_tool_calls, otherwise=asked
    )
    return StructuredOutputs(calls=calls, path="tools")


def _schema(tool: Tool) -> str:
    """Arguments that the tool does not name are not made up, unless it says that it takes them."""
    schema = {"type": "object", "additionalProperties": False, **(tool.parameters or {})}
    return msgspec.json.encode(schema).decode()


def _parser(conversation: Conversation, dialect: Dialect, thinks: ThinkState) -> OutputParser:
    names = [tool.name for tool in conversation.offered]
    answer = ToolCallParser(dialect.calls, names) if names else PlainText()
    return answer if dialect.thinks is None else ReasoningParser(dialect.thinks, thinks, answer)


def _encoded(
    conversation: Conversation,
    template: PromptTemplate,
    dialect: Dialect,
    variables: Mapping[str, Any],
    model: ServedModel,
) -> Sequence[int]:
    tools = [_for_template(tool) for tool in conversation.offered]
    messages = [_message(message, dialect) for message in conversation.messages]
    if not dialect.takes_tools:
        messages = plain_history(messages, dialect.calls)
        if tools:
            messages, tools = described(messages, tools, dialect.calls), []
    return chat_tokens(
        template,
        model.tokenizer,
        messages,
        model.max_model_len,
        tools=tools or None,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        **variables,
    )


def _for_template(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _message(message: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Names and forms that templates expect, beside what the message has."""
    given = {key: value for key, value in message.items() if value is not None}
    given["content"] = _text(given.get("content", ""))
    if given["role"] == "developer" and not dialect.has_developer:
        given["role"] = "system"
    if "reasoning" in given:
        given["reasoning_content"] = given["reasoning"]
    if dialect.calls.id_length is not None:
        _shorten_ids(given, dialect.calls)
    return given


def _text(content: str | Sequence[Mapping[str, str]]) -> str:
    """Parts are joined by line ends, as vLLM does."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _shorten_ids(message: dict[str, Any], form: CallFormat) -> None:
    """Templates of some families refuse ids of any other form than their own."""

    def short(call_id: str) -> str:
        assert form.id_length is not None
        if len(call_id) == form.id_length and call_id.isalnum():
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[: form.id_length]

    if "tool_call_id" in message:
        message["tool_call_id"] = short(message["tool_call_id"])
    if "tool_calls" in message:
        message["tool_calls"] = [call | {"id": short(call["id"])} for call in message["tool_calls"]]
