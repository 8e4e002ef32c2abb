"""The answer of `/v1/responses`, whole and as a stream of named events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from headway.core.plan import TokenLogprobs
from headway.server.api.blocks import Block, Blocks, Move, blocks_of
from headway.server.api.logprobs import ChatTokenLogprob, chat_logprobs
from headway.server.errors import ApiError
from headway.server.event import Event
from headway.server.generation import Answer, Piece
from headway.text.tokenizer import Tokenizer

__all__ = ["Response", "ResponsesReply"]

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    annotations: list[None] = field(default_factory=list)
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[None] = field(default_factory=list)
    content: list[ReasoningText]


class FunctionCall(Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Nobody pays for writing to the cache."""


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"]


class ResponseError(Struct):
    code: Literal["server_error"]
    message: str


class Response(Struct, kw_only=True):
    """What came of a request, and what was asked."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputMessage | ReasoningItem | FunctionCall] = field(default_factory=list)
    usage: ResponseUsage | None = None

    instructions: str | None
    max_output_tokens: int | None
    metadata: Mapping[str, Any]
    parallel_tool_calls: bool
    reasoning: Mapping[str, Any]
    temperature: float
    text: Mapping[str, Any]
    tool_choice: Any
    tools: Sequence[Any]
    top_logprobs: int
    top_p: float
    user: str | None

    background: Literal[False] = False
    previous_response_id: None = None
    store: Literal[False] = False
    """Whatever was asked: nothing is kept."""
    truncation: Literal["disabled"] = "disabled"


class ResponsesReply:
    """Holds how far the stream is: items, and the events so far."""

    def __init__(self, response: Response, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        """`response` is what it begins as."""
        self._response = response
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._blocks = Blocks()
        self._num_events = 0

    @property
    def id(self) -> str:
        return self._response.id

    def begin(self, answers: Sequence[Answer]) -> list[Event]:  # noqa: ARG002
        return [
            self._event("response.created", response=self._response),
            self._event("response.in_progress", response=self._response),
        ]

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:  # noqa: ARG002
        return self._events(self._blocks.add(piece), "completed")

    def end(self, answers: Sequence[Answer]) -> list[Event]:
        response = self._complete(answers[0])
        # Only the last item can have been cut off.
        events = self._events(self._blocks.end(), response.status)
        return [*events, self._event(f"response.{response.status}", response=response)]

    def fail(self, error: ApiError) -> list[Event]:
        """The error, then the response that it makes of this one, as OpenAI sends them."""
        message = str(error)
        response = msgspec.structs.replace(
            self._response, status="failed", error=ResponseError("server_error", message)
        )
        return [
            self._event("error", code=error.code, message=message, param=error.param),
            self._event("response.failed", response=response),
        ]

    def whole(self, answers: Sequence[Answer]) -> bytes:
        return msgspec.json.encode(self._complete(answers[0]))

    def _complete(self, answer: Answer) -> Response:
        cut = answer.finish_reason == "length"
        status: Status = "incomplete" if cut else "completed"
        blocks = blocks_of(answer)
        items = [self._item(block, "completed") for block in blocks[:-1]]
        items += [self._item(block, status) for block in blocks[-1:]]
        return msgspec.structs.replace(
            self._response,
            status=status,
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            output=items,
            usage=_usage_of(answer),
        )

    def _events(self, moves: Sequence[Move], status: Status) -> list[Event]:
        """`status` is that of the items which close."""
        return [event for move in moves for event in self._moved(move, status)]

    def _moved(self, move: Move, status: Status) -> Iterator[Event]:
        block = move.block
        match move.kind:
            case "open":
                item = self._item(block, "in_progress")
                yield self._event("response.output_item.added", output_index=block.index, item=item)
                if block.kind != "call":
                    part = self._part(block, empty=True)
                    yield self._within(block, "response.content_part.added", part=part)
            case "more":
                yield self._grown(move)
            case "close":
                yield from self._closed(block)
                item = self._item(block, status)
                yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _grown(self, move: Move) -> Event:
        match move.block.kind:
            case "call":
                kind = "response.function_call_arguments.delta"
                return self._within(move.block, kind, delta=move.text)
            case "reasoning":
                return self._within(move.block, "response.reasoning_text.delta", delta=move.text)
            case "text":
                return self._within(
                    move.block,
                    "response.output_text.delta",
                    delta=move.text,
                    logprobs=self._shown(move.logprobs),
                )

    def _closed(self, block: Block) -> Iterator[Event]:
        """All but the item's own event."""
        match block.kind:
            case "call":
                yield self._within(
                    block,
                    "response.function_call_arguments.done",
                    name=block.name,
                    arguments=block.text,
                )
                return
            case "reasoning":
                yield self._within(block, "response.reasoning_text.done", text=block.text)
            case "text":
                yield self._within(
                    block,
                    "response.output_text.done",
                    text=block.text,
                    logprobs=self._shown(block.logprobs),
                )
        part = self._part(block)
        yield self._within(block, "response.content_part.done", part=part)

    def _within(self, block: Block, kind: str, **content: Any) -> Event:
        """An event inside an item."""
        place = {"item_id": self._item_id(block), "output_index": block.index}
        if block.kind != "call":
            place["content_index"] = 0
        return self._event(kind, **place, **content)

    def _event(self, kind: str, **content: Any) -> Event:
        number = self._num_events
        self._num_events += 1
        event = {"type": kind, "sequence_number": number, **content}
        return Event(msgspec.json.encode(event), kind)

    def _item(self, block: Block, status: Status) -> OutputMessage | ReasoningItem | FunctionCall:
        """Empty while it is in progress."""
        begun, identity = status == "in_progress", self._item_id(block)
        part = self._part(block)
        match part:
            case OutputText():
                return OutputMessage(id=identity, status=status, content=[] if begun else [part])
            case ReasoningText():
                return ReasoningItem(id=identity, status=status, content=[] if begun else [part])
            case None:
                return FunctionCall(
                    id=identity,
                    status=status,
                    call_id=self._id_of("call", block),
                    name=block.name,
                    arguments="" if begun else block.text,
                )

    def _part(self, block: Block, *, empty: bool = False) -> OutputText | ReasoningText | None:
        """The content of an item, of which each has one part; a call has none."""
        text = "" if empty else block.text
        match block.kind:
            case "text":
                return OutputText(text=text, logprobs=self._shown([] if empty else block.logprobs))
            case "reasoning":
                return ReasoningText(text)
            case "call":
                return None

    def _shown(self, rows: Sequence[TokenLogprobs]) -> list[ChatTokenLogprob]:
        return chat_logprobs(rows, self._tokenizer).content if self._logprobs else []

    def _item_id(self, block: Block) -> str:
        prefixes = {"text": "msg", "reasoning": "rs", "call": "fc"}
        return self._id_of(prefixes[block.kind], block)

    def _id_of(self, prefix: str, block: Block) -> str:
        return f"{prefix}_{self.id.removeprefix('resp_')}_{block.index}"


def _usage_of(answer: Answer) -> ResponseUsage:
    num_input, num_output = len(answer.prompt_token_ids), len(answer.token_ids)
    return ResponseUsage(
        num_input,
        InputTokensDetails(answer.num_cached_tokens),
        num_output,
        OutputTokensDetails(answer.num_reasoning_tokens),
        num_input + num_output,
    )
