"""The messages of `/v1/messages` as the turns of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Struct

from headway.errors import InvalidRequest
from headway.server.api.conversation import tool_call

__all__ = ["Message", "TextParam", "Turns"]


class TextParam(Struct, kw_only=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str
    cache_control: Any = None
    citations: None = None


class ThinkingParam(
    Struct, kw_only=True, tag_field="type", tag="thinking", forbid_unknown_fields=True
):
    thinking: str
    signature: str | None = None
    """Not looked at."""


class ToolUseParam(
    Struct, kw_only=True, tag_field="type", tag="tool_use", forbid_unknown_fields=True
):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = None
    caller: None = None


class ToolResultParam(
    Struct, kw_only=True, tag_field="type", tag="tool_result", forbid_unknown_fields=True
):
    tool_use_id: str
    content: str | list[TextParam] | None = None
    is_error: bool | None = None
    cache_control: Any = None


Block = TextParam | ThinkingParam | ToolUseParam | ToolResultParam


class Message(Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


@dataclass(slots=True)
class Turns:
    """Messages for the chat template. Turns of one role that follow each other are one."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """A message's path → that of the turn which it began with."""

    @classmethod
    def of(cls, system: str | Sequence[TextParam] | None, messages: Sequence[Message]) -> Turns:
        turns = cls()
        if system is not None:
            turns._say("system", _joined(system), "system")
        for index, message in enumerate(messages):
            turns._add(message, f"messages[{index}]")
        for turn in turns.messages:
            turn["content"] = "\n".join(turn["content"])
            if "reasoning" in turn:
                turn["reasoning"] = "".join(turn["reasoning"])
        return turns

    @property
    def goes_on(self) -> bool:
        """The last turn is the assistant's: the answer goes on where that ends."""
        return bool(self.messages[-1]["role"] == "assistant")

    def _add(self, message: Message, path: str) -> None:
        if isinstance(message.content, str):
            self._say(message.role, message.content, path)
            return
        if not message.content:
            self._turn(message.role, path)
        for index, block in enumerate(message.content):
            place = f"{path}.content[{index}]"
            _check_role(block, message.role, place)
            self._add_block(message.role, block, path, place)

    def _add_block(self, role: str, block: Block, path: str, place: str) -> None:
        match block:
            case TextParam():
                self._say(role, block.text, path)
            case ThinkingParam():
                self._turn(role, path).setdefault("reasoning", []).append(block.thinking)
            case ToolUseParam():
                arguments = msgspec.json.encode(block.input).decode()
                call = tool_call(block.id, block.name, arguments, f"{place}.input")
                self._turn(role, path).setdefault("tool_calls", []).append(call)
            case ToolResultParam():
                turn = self._begin("tool", place)
                turn["tool_call_id"] = block.tool_use_id
                text = _joined(block.content or "")
                # Templates know no errors, so it is said.
                turn["content"].append(f"Error: {text}" if block.is_error else text)

    def _say(self, role: str, text: str, path: str) -> None:
        self._turn(role, path)["content"].append(text)

    def _turn(self, role: str, path: str) -> dict[str, Any]:
        """The last, if it is that role's; else a new one."""
        if self.messages and self.messages[-1]["role"] == role:
            return self.messages[-1]
        return self._begin(role, path)

    def _begin(self, role: str, path: str) -> dict[str, Any]:
        self.names[f"messages[{len(self.messages)}]"] = path
        self.messages.append({"role": role, "content": []})
        return self.messages[-1]


def _check_role(block: Block, role: str, place: str) -> None:
    match block:
        case TextParam():
            return
        case ToolResultParam():
            speaker = "user"
        case _:
            speaker = "assistant"
    if role != speaker:
        kind = block.__struct_config__.tag
        raise InvalidRequest(f"{place}.type", f"{kind!r} is said by {speaker!r}, not by {role!r}")


def _joined(content: str | Sequence[TextParam]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content)
