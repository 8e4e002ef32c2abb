"""From the scheduler's tokens to the text that a caller sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.core.params import SamplingParams
from headway.core.request import FinishReason, Request
from headway.core.step import Update
from headway.text.detokenizer import IncrementalDetokenizer
from headway.text.tokenizer import Tokenizer

__all__ = ["CompletionOutput", "NewRequest", "OutputDelta", "OutputProcessor", "RequestOutput"]


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as its caller puts it."""

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step adds to one request."""

    request_id: str
    text: str
    """New text, held back where it may become a stop string and cut where it did."""
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    """`stop`, `length`, `abort`, `timeout`, `error`; None: there is more to come."""
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for the model's own end of sequence."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    error: str | None = None
    """What went wrong, with `finish_reason` error."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion; the names are vLLM's."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request and what it came to; the names are vLLM's."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    error: str | None = None
    """What went wrong, with the finish reason `error`."""

    def add(self, delta: OutputDelta) -> None:
        output = self.outputs[0]
        output.text += delta.text
        output.token_ids += delta.token_ids
        output.finish_reason = delta.finish_reason
        output.stop_reason = delta.stop_reason
        self.finished = delta.finish_reason is not None
        self.num_cached_tokens = delta.num_cached_tokens
        self.error = delta.error


@dataclass(slots=True)
class _Stream:
    request: Request
    detokenizer: IncrementalDetokenizer


class OutputProcessor:
    """Keeps the text state of every request until it ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._streams: dict[str, _Stream] = {}

    def add(self, request: Request) -> None:
        detokenizer = IncrementalDetokenizer(self._tokenizer, request.params.stop)
        self._streams[request.request_id] = _Stream(request, detokenizer)

    def process(self, update: Update) -> OutputDelta:
        """The text of one update. A stop string in it makes its `finish_reason` stop, whatever
        the scheduler said: the caller must then end the request."""
        request = update.request
        detokenizer = self._streams[request.request_id].detokenizer
        reason = update.finish_reason
        stop_reason: int | str | None = None
        token_ids = () if update.token_id is None else (update.token_id,)
        text = ""
        if update.token_id is not None and update.token_id in request.stop_token_ids:
            # The text of the token that ends a request is not part of its output.
            if update.token_id in request.params.stop_token_ids:
                stop_reason = update.token_id
        elif update.token_id is not None:
            may_stop = request.num_output_tokens >= request.params.min_tokens
            text = detokenizer.feed(token_ids, may_stop=may_stop)
        if detokenizer.stopped is not None:
            reason, stop_reason = FinishReason.STOP, detokenizer.stopped
        elif reason is not None:
            text += detokenizer.flush()
        if reason is not None:
            del self._streams[request.request_id]
        return OutputDelta(
            request.request_id,
            text,
            token_ids,
            None if reason is None else reason.value,
            stop_reason,
            request.num_cached_tokens,
            update.error,
        )

    def end(self, request_id: str, reason: FinishReason) -> OutputDelta | None:
        """The last delta of a request that was ended from outside; None if it had ended."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return None
        cached = stream.request.num_cached_tokens
        text = stream.detokenizer.flush()
        return OutputDelta(request_id, text, (), reason.value, num_cached_tokens=cached)
