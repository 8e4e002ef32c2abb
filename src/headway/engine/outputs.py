"""From the scheduler's tokens to the text that a caller sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, TokenLogprobs
from headway.core.request import FinishReason, Request
from headway.core.step import Update
from headway.errors import InvalidRequest
from headway.text.detokenizer import IncrementalDetokenizer
from headway.text.tokenizer import Tokenizer

__all__ = [
    "CompletionOutput",
    "Logprob",
    "NewRequest",
    "OutputDelta",
    "OutputProcessor",
    "RequestOutput",
    "fan_out",
]


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as its caller puts it."""

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    index: int = 0
    """Which of the completions of its prompt this is; keys what is drawn for it."""
    tenant: str = ""
    deadline_s: float | None = None
    """Seconds from arrival until its first token is due (rule S13, `deadline`)."""
    queue_timeout_s: float | None = None
    """Seconds from arrival after which it ends, if it was never admitted (rule A2)."""


def fan_out(requests: Sequence[NewRequest]) -> list[NewRequest]:
    """A request for each of the `n` completions of each, which then live and end apart.

    Those of a prompt share what the prefix cache gives. The first alone gives the
    log-probabilities of the prompt. Requests with the same params keep that in common.
    """
    alone: dict[int, tuple[SamplingParams, SamplingParams]] = {}
    every: list[NewRequest] = []
    for request in requests:
        params = request.params
        if params.n == 1:
            every.append(request)
            continue
        if id(params) not in alone:
            first = replace(params, n=1)
            alone[id(params)] = first, replace(first, prompt_logprobs=None)
        first, others = alone[id(params)]
        every += [
            replace(
                request,
                request_id=f"{request.request_id}-{index}",
                params=others if index else first,
                index=index,
            )
            for index in range(params.n)
        ]
    return every


class OutputDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step adds to one request. One for each token: a struct is made several times as
    fast as a dataclass, and goes to another process as it is."""

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
    error: ChunkError | None = None
    """What went wrong, with `finish_reason` error."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of `token_ids`, where the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the next prompt tokens, from the second on."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token in one place; the names are vLLM's."""

    logprob: float
    rank: int
    """1: the likeliest."""
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One completion; the names are vLLM's."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    """Sum over the tokens; None where no log-probabilities were asked for."""
    logprobs: list[dict[int, Logprob]] | None = None
    """By output token: itself first, then the likeliest in its place."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request and what it came to; the names are vLLM's."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """By index, one for each of `n`."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """By prompt token, the first having none; None where they were not asked for."""
    finished: bool = False
    """All completions have ended."""
    num_cached_tokens: int = 0
    """Prompt tokens that the first completion found in the prefix cache."""
    error: str | None = None
    """What went wrong, with the finish reason `error`."""

    @classmethod
    def of(cls, request: NewRequest, prompt: str | None) -> RequestOutput:
        """What a request begins with, before it is fanned out."""
        params = request.params
        return cls(
            request.request_id,
            prompt,
            list(request.prompt_token_ids),
            [
                CompletionOutput(
                    index,
                    cumulative_logprob=None if params.logprobs is None else 0.0,
                    logprobs=None if params.logprobs is None else [],
                )
                for index in range(params.n)
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )

    def add(self, index: int, delta: OutputDelta, tokenizer: Tokenizer) -> None:
        """Takes what a step adds to one of the completions."""
        output = self.outputs[index]
        output.text += delta.text
        output.token_ids += delta.token_ids
        output.finish_reason = delta.finish_reason
        output.stop_reason = delta.stop_reason
        for logprobs in delta.logprobs:
            assert output.logprobs is not None
            assert output.cumulative_logprob is not None
            output.logprobs.append(_by_token(logprobs, tokenizer))
            output.cumulative_logprob += logprobs.logprob
        if delta.prompt_logprobs:
            assert self.prompt_logprobs is not None
            self.prompt_logprobs += [_by_token(row, tokenizer) for row in delta.prompt_logprobs]
        self.finished = all(item.finish_reason is not None for item in self.outputs)
        if index == 0:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.error is not None:
            self.error = self.error or str(delta.error)


def _by_token(logprobs: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """The token itself first, then the likeliest."""
    own = Logprob(logprobs.logprob, logprobs.rank, tokenizer.token_text(logprobs.token_id))
    top = {
        token: Logprob(value, rank, tokenizer.token_text(token))
        for rank, (token, value) in enumerate(logprobs.top, start=1)
    }
    return {logprobs.token_id: own, **{t: p for t, p in top.items() if t != logprobs.token_id}}


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
        params = request.params
        detokenizer = IncrementalDetokenizer(
            self._tokenizer,
            params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )
        self._streams[request.request_id] = _Stream(request, detokenizer)

    def bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The params' bad words as tokens, each as it is written at the start of a text and
        after a space. Other ways of cutting them into tokens are not looked for (as in vLLM).

        Raises `InvalidRequest` for one that comes to no token.
        """
        sequences: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            for text in (word, " " + word.lstrip()):
                try:
                    ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                except InvalidRequest as error:
                    raise InvalidRequest("bad_words", f"{word!r:.80}: {error}") from None
                if not ids:
                    raise InvalidRequest("bad_words", f"{word!r:.80} comes to no token")
                sequences[ids] = None
        return tuple(sequences)

    def process(self, update: Update) -> OutputDelta | None:
        """The text of one update. A stop string in it makes its `finish_reason` stop, whatever
        the scheduler said: the caller must then end the request.

        None: the token comes after a stop string, in the same step (rule S14).
        """
        request = update.request
        if request.request_id not in self._streams:
            return None
        detokenizer = self._streams[request.request_id].detokenizer
        reason = update.finish_reason
        stop_reason: int | str | None = None
        token_ids = () if update.token_id is None else (update.token_id,)
        text = ""
        ends = update.token_id is not None and update.token_id in request.stop_token_ids
        if ends and update.token_id in request.params.stop_token_ids:
            stop_reason = update.token_id
        # The text of the token that ends a request is not part of its output, unless asked for.
        if update.token_id is not None and (not ends or request.params.include_stop_str_in_output):
            may_stop = not ends and request.num_output_tokens >= request.params.min_tokens
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
            () if update.logprobs is None else (update.logprobs,),
            update.prompt_logprobs,
        )

    def end(self, request_id: str, reason: FinishReason) -> OutputDelta | None:
        """The last delta of a request that was ended from outside; None if it had ended."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return None
        cached = stream.request.num_cached_tokens
        text = stream.detokenizer.flush()
        return OutputDelta(request_id, text, (), reason.value, num_cached_tokens=cached)
