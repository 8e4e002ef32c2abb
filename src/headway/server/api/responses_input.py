"""The items of `/v1/responses` as the turns of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from headway.server.api.body import of_kind
from headway.server.api.conversation import tool_call

__all__ = ["ITEMS", "Turns"]

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(
    Struct, kw_only=True, tag_field="type", tag="input_text", forbid_unknown_fields=True
):
    text: str
    prompt_cache_breakpoint: Any = None
    """Without effect: whatever is shared is found."""


class OutputText(
    Struct, kw_only=True, tag_field="type", tag="output_text", forbid_unknown_fields=True
):
    """Comes back from an answer."""

    text: str
    annotations: Any = None
    logprobs: Any = None


class ReasoningText(
    Struct, kw_only=True, tag_field="type", tag="reasoning_text", forbid_unknown_fields=True
):
    text: str


class Item(Struct, kw_only=True, forbid_unknown_fields=True):
    """What all items may have, and nothing reads."""

    id: str | None = None
    status: Status | None = None


class MessageItem(Item, kw_only=True):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText | OutputText]
    phase: None = None


class FunctionCallItem(Item, kw_only=True):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    caller: None = None
    namespace: None = None


class FunctionCallOutputItem(Item, kw_only=True):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]
    caller: None = None
    name: str | None = None
    namespace: None = None


class ReasoningItem(Item, kw_only=True):
    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[None] | None = None
    encrypted_content: None = None


ITEMS: Mapping[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}


@dataclass(slots=True)
class Turns:
    """Messages for the chat template. What an assistant thinks, says and calls, in this order, is
    one message, though it comes as several items."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """A message's path → that of the item which it began with."""

    @classmethod
    def of(cls, instructions: str | None, items: str | Sequence[Mapping[str, Any]]) -> Turns:
        """Raises `InvalidRequest` or `ApiError`, naming the field, for what is wrong in an item."""
        turns = cls()
        if instructions is not None:
            turns._begin("instructions", role="system", content=instructions)
        if isinstance(items, str):
            turns._begin("input", role="user", content=items)
            return turns
        for index, item in enumerate(items):
            path = f"input[{index}]"
            # A message need not say that it is one.
            turns._add(of_kind(item, ITEMS, path, default="message"), path)
        return turns

    def _add(self, item: Item, path: str) -> None:
        match item:
            case MessageItem(role="assistant"):
                turn = self._assistant(path, without=("content", "tool_calls"))
                turn["content"] = _text(item.content)
            case MessageItem():
                self._begin(path, role=item.role, content=_text(item.content))
            case ReasoningItem():
                if item.content:
                    turn = self._assistant(path, without=("reasoning", "content", "tool_calls"))
                    turn["reasoning"] = "".join(part.text for part in item.content)
            case FunctionCallItem():
                call = tool_call(item.call_id, item.name, item.arguments, f"{path}.arguments")
                self._assistant(path).setdefault("tool_calls", []).append(call)
            case FunctionCallOutputItem():
                content = _text(item.output)
                self._begin(path, role="tool", tool_call_id=item.call_id, content=content)

    def _assistant(self, path: str, without: Sequence[str] = ()) -> dict[str, Any]:
        """The last message, if it is the assistant's and has none of these yet; else a new one."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and all(last.get(key) is None for key in without):
            return last
        return self._begin(path, role="assistant", content=None)

    def _begin(self, path: str, **message: Any) -> dict[str, Any]:
        self.names[f"messages[{len(self.messages)}]"] = path
        self.messages.append(message)
        return message


def _text(content: str | Sequence[InputText | OutputText]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content)
