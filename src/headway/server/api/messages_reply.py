"""The answer of `/v1/messages`, whole and as a stream of named events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Struct

from headway.server.api.blocks import Block, Blocks, Move, blocks_of
from headway.server.errors import ANTHROPIC_ERRORS, ApiError
from headway.server.event import Event
from headway.server.generation import Answer, Piece

__all__ = ["Message", "MessagesReply"]


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """Nothing is signed, and nothing that comes back is verified."""


class ToolUseBlock(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class OutputTokensDetails(Struct):
    thinking_tokens: int


class Usage(Struct, kw_only=True):
    """A prompt has `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    """Nobody pays for writing to the cache."""
    output_tokens: int
    output_tokens_details: OutputTokensDetails


StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class Message(Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: Usage


@dataclass(slots=True)
class MessagesReply:
    """Holds how far the stream is."""

    id: str
    model: str
    max_tokens: int
    _blocks: Blocks = field(default_factory=Blocks)

    def begin(self, answers: Sequence[Answer]) -> list[Event]:
        message = Message(id=self.id, model=self.model, content=[], usage=_usage_of(answers[0]))
        return [_event("message_start", message=message), _event("ping")]

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:  # noqa: ARG002
        return [self._moved(move) for move in self._blocks.add(piece)]

    def end(self, answers: Sequence[Answer]) -> list[Event]:
        answer = answers[0]
        reason, sequence = self._stop(answer)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            *(self._moved(move) for move in self._blocks.end()),
            _event("message_delta", delta=delta, usage=_usage_of(answer)),
            _event("message_stop"),
        ]

    def fail(self, error: ApiError) -> list[Event]:
        return [Event(ANTHROPIC_ERRORS.body(error), "error")]

    def whole(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        reason, sequence = self._stop(answer)
        message = Message(
            id=self.id,
            model=self.model,
            content=[self._content(block) for block in blocks_of(answer)],
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage_of(answer),
        )
        return msgspec.json.encode(message)

    def _stop(self, answer: Answer) -> tuple[StopReason, str | None]:
        """Why it ended, and the stop sequence that ended it."""
        match answer.finish_reason:
            case "length" if len(answer.token_ids) < self.max_tokens:
                return "model_context_window_exceeded", None
            case "length":
                return "max_tokens", None
            case "tool_calls":
                return "tool_use", None
            case _ if isinstance(answer.stop_reason, str):
                return "stop_sequence", answer.stop_reason
            case _:
                return "end_turn", None

    def _moved(self, move: Move) -> Event:
        index = move.block.index
        match move.kind:
            case "open":
                empty = self._content(Block(index, move.block.kind, move.block.name))
                return _event("content_block_start", index=index, content_block=empty)
            case "more":
                return _event("content_block_delta", index=index, delta=_delta(move))
            case "close":
                return _event("content_block_stop", index=index)

    def _content(self, block: Block) -> TextBlock | ThinkingBlock | ToolUseBlock:
        match block.kind:
            case "text":
                return TextBlock(block.text)
            case "reasoning":
                return ThinkingBlock(block.text)
            case "call":
                return ToolUseBlock(
                    id=f"toolu_{self.id.removeprefix('msg_')}_{block.index}",
                    name=block.name,
                    input=_object(block.text),
                )


def _delta(move: Move) -> dict[str, str]:
    match move.block.kind:
        case "text":
            return {"type": "text_delta", "text": move.text}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": move.text}
        case "call":
            return {"type": "input_json_delta", "partial_json": move.text}


def _object(arguments: str) -> dict[str, Any]:
    """A call's input. One that the limit cut off, or that is no object, has no shape here: {}."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _event(kind: str, **content: Any) -> Event:
    return Event(msgspec.json.encode({"type": kind, **content}), kind)


def _usage_of(answer: Answer) -> Usage:
    """So far."""
    cached = answer.num_cached_tokens
    return Usage(
        input_tokens=len(answer.prompt_token_ids) - cached,
        cache_read_input_tokens=cached,
        output_tokens=len(answer.token_ids),
        output_tokens_details=OutputTokensDetails(answer.num_reasoning_tokens),
    )
