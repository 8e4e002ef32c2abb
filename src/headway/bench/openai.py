"""OpenAI's API as a client: bodies of requests, and streams of chunks read.

A chunk counts as a token, or several, unless it carries none: the role that opens a chat, the
empty one that only tells the finish reason, the usage at the end. A chunk without text counts
otherwise: its token has none of its own (half a character, a special token).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from headway.bench.http import HttpClient
from headway.bench.load import Outcome
from headway.errors import HeadwayError

__all__ = [
    "Api",
    "ApiKind",
    "Message",
    "Prompt",
    "StreamReader",
    "Target",
    "complaint",
    "first_model",
]

ApiKind: TypeAlias = Literal["completions", "chat"]

Message: TypeAlias = dict[str, str]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or for a chat the messages so far."""

_LONGEST_COMPLAINT = 300


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class StreamChunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


class WholeAnswer(msgspec.Struct):
    usage: Usage | None = None


class Model(msgspec.Struct):
    id: str


class ModelList(msgspec.Struct):
    data: list[Model]


_CHUNK = msgspec.json.Decoder(StreamChunk)


class StreamReader:
    """Reads the server-sent events of one answer into its outcome. What is no chunk is an error
    of the request, and the rest of its stream is passed over."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._complete = False

    def feed(self, data: bytes, now: float) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and self._outcome.error is None:
                self._event(line.removeprefix(b"data:").strip(), now)

    def end(self) -> None:
        """The body is complete; is the answer?"""
        outcome = self._outcome
        if outcome.error is None and not self._complete:
            outcome.error = "the stream ended before the answer was complete"
        elif outcome.error is None and not outcome.chunk_times_s:
            outcome.error = "the answer has no token"

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._complete = True
            return
        try:
            chunk = _CHUNK.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._outcome.error = f"no chunk of a completion: {error}"
            return
        if chunk.error is not None or chunk.object == "error":
            self._outcome.error = complaint(data)
            return
        if chunk.usage is not None:
            self._usage(chunk.usage)
        for choice in chunk.choices or ():
            self._choice(choice, now)

    def _choice(self, choice: Choice, now: float) -> None:
        delta = choice.delta or Delta()
        said = choice.text or delta.content or ""
        text = said or delta.reasoning_content or delta.reasoning or ""
        self._complete |= choice.finish_reason is not None
        self._outcome.answer_ids += choice.token_ids or ()
        if text or (choice.finish_reason is None and delta.role is None):
            self._outcome.chunk_times_s.append(now)
            self._outcome.texts.append(text)
            self._outcome.said += said

    def _usage(self, usage: Usage) -> None:
        outcome, details = self._outcome, usage.prompt_tokens_details
        outcome.prompt_tokens = usage.prompt_tokens
        outcome.completion_tokens = usage.completion_tokens
        outcome.cached_tokens = None if details is None else details.cached_tokens


@dataclass(frozen=True, slots=True)
class Api:
    """How a completion is asked for."""

    kind: ApiKind
    endpoint: str
    """Path on the server."""
    model: str
    extra: Mapping[str, Any]
    """Further fields of the body; they win over those here."""
    return_token_ids: bool = False
    """Ask for the tokens of streamed answers, as vLLM and we tell them."""

    def body(
        self,
        prompt: Prompt,
        max_tokens: int,
        *,
        stream: bool,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        """`more` wins over everything."""
        fields: dict[str, Any]
        if self.kind == "chat":
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            fields = {"messages": messages, "max_completion_tokens": max_tokens}
        else:
            fields = {"prompt": prompt, "max_tokens": max_tokens}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
            if self.return_token_ids:
                fields["return_token_ids"] = True
        return msgspec.json.encode({"model": self.model, **fields, **self.extra, **more})


class Target:
    """A server, and the API by which it is asked."""

    def __init__(self, client: HttpClient, api: Api) -> None:
        self._client = client
        self.api = api

    async def send(self, outcome: Outcome, body: bytes, now: float) -> None:
        """Sends a streamed request `now` and fills in what comes of it. Raises nothing for what
        the server does or does not do."""
        outcome.sent_s = now
        reader = StreamReader(outcome)
        try:
            answer = await self._client.exchange("POST", self.api.endpoint, body, reader.feed)
        except OSError as error:
            outcome.error = outcome.error or str(error)
            return
        if answer.status != 200:
            outcome.error = f"HTTP {answer.status}: {complaint(answer.body)}"
            return
        reader.end()

    async def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the server makes of it, template and all.

        Raises HeadwayError where it does not say, and OSError.
        """
        body = self.api.body(prompt, 1, stream=False)
        answer = await self._client.exchange("POST", self.api.endpoint, body)
        if answer.status != 200:
            raise HeadwayError(f"the server answers {answer.status}: {complaint(answer.body)}")
        try:
            usage = msgspec.json.decode(answer.body, type=WholeAnswer).usage
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HeadwayError(f"the server's answer is no completion: {error}") from None
        if usage is None or usage.prompt_tokens is None:
            raise HeadwayError("the server does not say how many tokens a prompt has (usage)")
        return usage.prompt_tokens


async def first_model(client: HttpClient) -> str:
    """The name of the first model that the server lists. Raises HeadwayError and OSError."""
    answer = await client.exchange("GET", "/v1/models")
    if answer.status != 200:
        raise HeadwayError(f"/v1/models answers {answer.status}: {complaint(answer.body)}")
    try:
        models = msgspec.json.decode(answer.body, type=ModelList).data
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HeadwayError(f"/v1/models answers no list of models: {error}") from None
    if not models:
        raise HeadwayError("/v1/models lists no model")
    return models[0].id


def complaint(body: bytes) -> str:
    """What an error's body says, short and in one line."""
    text = body.decode(errors="replace")
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = None
    if isinstance(found, dict):
        error = found.get("error", found)
        said = error.get("message") if isinstance(error, dict) else error
        text = str(said or text)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_COMPLAINT else f"{text[:_LONGEST_COMPLAINT]}…"
