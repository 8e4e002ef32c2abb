"""The way from a request's body to its answer, whatever API it speaks.

    body ─ Endpoint.read ─▶ Job ─ encode ─▶ token ids ─ ServedEngine.add ─▶ deltas
                             └▶ Reply ◀─ Piece ◀─ Answer.add ◀───────────────┘

What is particular to an API is its `Endpoint`, which reads a body, and the `Reply` that this makes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from headway.core.params import SamplingParams
from headway.core.plan import TokenLogprobs
from headway.engine.exactness import Exactness
from headway.engine.outputs import NewRequest, OutputDelta
from headway.server.errors import ApiError, ErrorShape
from headway.server.event import Event
from headway.text.chat_template import PromptTemplate
from headway.text.parts import CallStart, OutputParser, Part, PlainText, Reasoning, Text
from headway.text.tokenizer import Tokenizer

__all__ = [
    "Answer",
    "Computation",
    "Endpoint",
    "Job",
    "Piece",
    "Reply",
    "ServedEngine",
    "ServedModel",
    "Stream",
    "check_model",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the API must know of the model."""

    names: tuple[str, ...]
    """What clients may put in `model`; answers say the first."""
    created: int
    """Unix time that `/v1/models` gives for it."""
    tokenizer: Tokenizer
    chat_template: PromptTemplate | None
    sampling_defaults: Mapping[str, Any]
    """Sampling options, by name, that the model asks for where a request leaves them out."""
    max_model_len: int
    exactness: Exactness
    tool_call_parser: str = "auto"
    """How the model writes calls: a name of `text.tools.formats.FORMATS`; auto: as its chat
    template shows it."""

    @property
    def name(self) -> str:
        return self.names[0]


def check_model(name: str | None, model: ServedModel) -> None:
    """Raises `ApiError` (404) where a client names a model that is not served."""
    if name is None or name in model.names:
        return
    served = ", ".join(map(repr, model.names))
    message = f"The model {name!r:.200} is not served here; {served} is."
    raise ApiError(404, message, param="model", code="model_not_found")


class Stream(Protocol):
    """The deltas of one request, as they come; ends after the one with a finish reason.

    Whoever holds it must read it to its end or `abort` it: until then the request runs on.
    """

    def __aiter__(self) -> AsyncIterator[OutputDelta]: ...

    async def __anext__(self) -> OutputDelta: ...

    def abort(self) -> None:
        """Ends the request, if it has not ended; its blocks are free in the next plan."""
        ...


class ServedEngine(Protocol):
    """The engine as the server sees it; all is for the server's event loop."""

    @property
    def is_alive(self) -> bool:
        """It takes requests and works on them."""
        ...

    async def check_room(self, num_reqs: int = 1) -> None:
        """Raises QueueFull or EngineDead: to be asked before any work on a prompt."""
        ...

    async def add(self, requests: Sequence[NewRequest]) -> Sequence[Stream]:
        """Accepts all of them at once, or raises InvalidRequest, QueueFull or EngineDead and
        accepts none. Cancelled, it leaves none behind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a body asks for, in the engine's terms."""

    model: str | None
    """The model that it names; None: it names none."""
    stream: bool
    params: SamplingParams
    encode: Callable[[], Sequence[Sequence[int]]]
    """Tokenises the prompts, after `Endpoint.read`; raises `InvalidRequest`. Both run in a thread
    where the body is long."""
    names: Mapping[str, str]
    """What the body calls `prompt`, and other fields that it has its own names for."""
    reply: Reply
    parser: Callable[[], OutputParser] = PlainText
    """Makes what takes an output apart, one for each."""
    num_prompts: int = 1
    """As many as `encode` returns."""
    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    deadline_s: float | None = None
    """Seconds from arrival to the first token (policy `deadline`)."""
    queue_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step adds to one answer."""

    parts: Sequence[Part]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    text_offset: int
    """Characters of the output's text before it."""
    finish_reason: str | None
    """`stop`, `length`, `tool_calls`; None: there is more to come."""
    stop_reason: int | str | None

    @property
    def text(self) -> str:
        """What it adds to the answer proper."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(slots=True)
class Answer:
    """What one completion has come to so far; grows with each delta."""

    prompt_token_ids: Sequence[int]
    parser: OutputParser
    counts_prompt: bool = True
    """False for the second and further completions of a prompt: it counts once."""
    num_cached_tokens: int = 0
    num_characters: int = 0
    token_ids: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    """What it grew by, in order."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """The same list for all completions of a prompt; the first one gets them."""

    @classmethod
    def of(
        cls, prompt_token_ids: Sequence[int], n: int, parser: Callable[[], OutputParser]
    ) -> list[Answer]:
        """The completions of one prompt."""
        first = cls(prompt_token_ids, parser())
        return [
            first,
            *(
                cls(prompt_token_ids, parser(), False, prompt_logprobs=first.prompt_logprobs)
                for _ in range(1, n)
            ),
        ]

    @property
    def parts(self) -> Iterator[Part]:
        return (part for piece in self.pieces for part in piece.parts)

    @property
    def text(self) -> str:
        """The answer proper."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens up to the last that added to the reasoning."""
        num_tokens = num_reasoning = 0
        for piece in self.pieces:
            num_tokens += len(piece.token_ids)
            if any(isinstance(part, Reasoning) for part in piece.parts):
                num_reasoning = num_tokens
        return num_reasoning

    def add(self, delta: OutputDelta) -> Piece:
        parts = self.parser.feed(delta.text)
        if delta.finish_reason is not None:
            parts += self.parser.finish()
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if self.counts_prompt:
            self.num_cached_tokens = delta.num_cached_tokens
        self.finish_reason = delta.finish_reason
        if delta.finish_reason == "stop" and self._calls(parts):
            self.finish_reason = "tool_calls"
        self.stop_reason = delta.stop_reason
        piece = Piece(
            parts,
            delta.token_ids,
            delta.logprobs,
            self.num_characters,
            self.finish_reason,
            self.stop_reason,
        )
        self.num_characters += len(delta.text)
        self.pieces.append(piece)
        return piece

    def _calls(self, last: Sequence[Part]) -> bool:
        """It calls a tool, in the `last` parts or before."""
        return any(isinstance(part, CallStart) for part in chain(self.parts, last))


class Reply(Protocol):
    """Shapes the answer to one HTTP request.

    For a stream `begin`, then `add` for each delta, then `end`, or `fail` where it breaks off; for
    an answer in one piece `whole`, once all answers are complete. Answers are in the order of the
    prompts, and of `n`.
    """

    @property
    def id(self) -> str:
        """Of the answer; the engine's request ids begin with it."""
        ...

    def begin(self, answers: Sequence[Answer]) -> list[Event]:
        """What a stream opens with, sent with the first delta, which has been added."""
        ...

    def add(self, index: int, piece: Piece, answer: Answer) -> list[Event]:
        """What a delta comes to; `answer` has it already."""
        ...

    def end(self, answers: Sequence[Answer]) -> list[Event]: ...

    def fail(self, error: ApiError) -> list[Event]:
        """Closes a stream that has begun, so that nobody takes it for complete."""
        ...

    def whole(self, answers: Sequence[Answer]) -> bytes: ...


class Endpoint(Protocol):
    """What is particular to one path."""

    @property
    def errors(self) -> ErrorShape: ...

    def read(self, body: bytes) -> Job:
        """Raises `ApiError` or `InvalidRequest` for a body that is wrong."""
        ...


class Computation(Protocol):
    """What is particular to one path that needs no engine."""

    @property
    def errors(self) -> ErrorShape: ...

    def answer(self, body: bytes) -> bytes:
        """JSON. Raises `ApiError` or `InvalidRequest`. Runs in a thread where the body is long."""
        ...
