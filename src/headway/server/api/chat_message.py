"""The messages of a chat, and what a chat template gets of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headway.errors import InvalidRequest
from headway.server.api.conversation import tool_call

__all__ = ["Message"]


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which function was called, and with what."""

    name: str
    arguments: str
    """JSON."""


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"] | None = None
    function: CalledFunction


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. What an answer carries may come back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The older name of `reasoning`."""
    annotations: list[None] | None = None
    audio: None = None
    function_call: None = None
    refusal: str | None = None
    """What an assistant said instead of its content."""

    def for_template(self, path: str) -> dict[str, Any]:
        """What the chat template gets of it. Raises `InvalidRequest` for what its role cannot
        have, and what it lacks."""
        self._check(path)
        calls = [
            tool_call(
                call.id,
                call.function.name,
                call.function.arguments,
                f"{path}.tool_calls[{index}].function.arguments",
            )
            for index, call in enumerate(self.tool_calls or ())
        ]
        content = msgspec.to_builtins(self.content)
        message = {
            "role": self.role,
            "content": self.refusal if content is None else content,
            "name": self.name,
            "reasoning": self.reasoning or self.reasoning_content,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        return {key: value for key, value in message.items() if value is not None}

    def _check(self, path: str) -> None:
        only = {
            "tool_calls": "assistant",
            "reasoning": "assistant",
            "reasoning_content": "assistant",
            "refusal": "assistant",
            "tool_call_id": "tool",
        }
        for field, role in only.items():
            if getattr(self, field) and self.role != role:
                raise InvalidRequest(f"{path}.{field}", f"goes with the role {role!r} alone")
        if self.role == "tool" and not self.tool_call_id:
            raise InvalidRequest(f"{path}.tool_call_id", "is required")
        stands_in = self.tool_calls or self.reasoning or self.reasoning_content or self.refusal
        if self.content is None and not stands_in:
            raise InvalidRequest(f"{path}.content", "is required")
