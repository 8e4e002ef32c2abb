"""The two endpoints that generate: from a body to an answer, whole or streamed.

A request lives inside one coroutine. However that ends (answered, failed, the client gone,
the server stopping), what was started in the engine is aborted on the way out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.core.params import SamplingParams
from headway.engine.async_engine import AsyncEngine, RequestStream
from headway.engine.outputs import NewRequest, OutputDelta, fan_out
from headway.errors import EngineDead, RequestTooLarge
from headway.server.errors import ApiError, bad_request, to_api_error
from headway.server.protocol import (
    MAX_PROMPTS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    decode,
)
from headway.server.responses import Answer, ChatReply, CompletionReply, Reply, Shown, usage_of
from headway.server.transport import ClientGone, EventStream, read_body, run_while_connected

__all__ = ["ChatCompletions", "Completions", "Endpoint", "GenerationEndpoint"]

MAX_BODY_BYTES = 64 * 2**20

_LONG_BODY_BYTES = 8192
"""From here on prompts are tokenised in a thread, so that other clients' streams go on."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a body asks for, in the engine's terms."""

    request: GenerationRequest
    params: SamplingParams
    reply: Reply
    encode: Callable[[], Sequence[Sequence[int]]]
    """Tokenises the prompts; may run in a thread."""
    prompt_field: str
    """What the body calls the prompt."""


class Endpoint(Protocol):
    """What is particular to one of the two endpoints."""

    def read(self, body: bytes, engine: AsyncEngine, model: str) -> Job:
        """Raises `ApiError` or `InvalidRequest` for a body that is wrong."""
        ...


class Completions:
    """`POST /v1/completions`."""

    _decoder = msgspec.json.Decoder(CompletionRequest)

    def read(self, body: bytes, engine: AsyncEngine, model: str) -> Job:
        request = decode(body, self._decoder)
        prompts = request.prompts()

        def encode() -> list[Sequence[int]]:
            return [
                engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
                for prompt in prompts
            ]

        params = request.sampling_params(engine.sampling_defaults)
        return Job(
            request=request,
            params=params,
            reply=CompletionReply(
                f"cmpl-{uuid.uuid4().hex}",
                int(time.time()),
                model,
                _shown(params, engine),
                _no_usage(request),
            ),
            encode=encode,
            prompt_field="prompt",
        )


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    _decoder = msgspec.json.Decoder(ChatRequest)

    def read(self, body: bytes, engine: AsyncEngine, model: str) -> Job:
        request = decode(body, self._decoder)
        template = engine.chat_template
        if template is None:
            raise bad_request(
                f"messages: the model {model} has no chat template; use /v1/completions",
                "messages",
            )
        messages = [message.for_template() for message in request.messages]

        def encode() -> list[Sequence[int]]:
            # The template writes the special tokens itself.
            return [engine.tokenizer.encode(template.render(messages), add_special_tokens=False)]

        params = request.sampling_params(engine.sampling_defaults)
        return Job(
            request=request,
            params=params,
            reply=ChatReply(
                f"chatcmpl-{uuid.uuid4().hex}",
                int(time.time()),
                model,
                _shown(params, engine),
                _no_usage(request),
            ),
            encode=encode,
            prompt_field="messages",
        )


def _shown(params: SamplingParams, engine: AsyncEngine) -> Shown:
    return Shown(engine.tokenizer, params.logprobs is not None, params.prompt_logprobs is not None)


def _no_usage(request: GenerationRequest) -> UnsetType | None:
    return None if request.include_usage else UNSET


class GenerationEndpoint:
    """An ASGI application that answers one path."""

    def __init__(
        self,
        endpoint: Endpoint,
        engine: AsyncEngine,
        served_model_name: str,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._model = served_model_name
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = EventStream(send)
        try:
            body = await read_body(scope, receive, self._max_body_bytes)
            whole = await run_while_connected(receive, self._generate(body, events))
            if whole is not None:
                await Response(whole, media_type="application/json")(scope, receive, send)
        except ClientGone:
            return
        except Exception as error:
            api_error = to_api_error(error)
            if events.started:
                await events.fail(api_error.body())
            else:
                await api_error.response()(scope, receive, send)

    async def _generate(self, body: bytes, events: EventStream) -> bytes | None:
        """The answer in one piece; None where it was streamed."""
        job = self._endpoint.read(body, self._engine, self._model)
        self._check_model(job.request.model)
        self._engine.check_room(job.params.n)
        if len(body) < _LONG_BODY_BYTES:
            prompts = job.encode()
        else:
            prompts = await asyncio.to_thread(job.encode)
        streams = self._add(job, prompts)
        answers = [answer for prompt in prompts for answer in Answer.of(len(prompt), job.params.n)]
        try:
            if job.request.stream:
                await _stream(job, streams, answers, events)
                return None
            await _collect(streams, answers)
            return msgspec.json.encode(job.reply.whole(answers))
        finally:
            for stream in streams:
                stream.abort()

    def _check_model(self, model: str | None) -> None:
        if model not in (None, self._model):
            raise model_not_found(str(model), self._model)

    def _add(self, job: Job, prompts: Sequence[Sequence[int]]) -> list[RequestStream]:
        request_id, request = job.reply.id, job.request
        if len(prompts) * job.params.n > MAX_PROMPTS:
            raise bad_request(
                f"n: {job.params.n} completions of {len(prompts)} prompts; at most {MAX_PROMPTS} "
                "go together",
                "n",
            )
        new = [
            NewRequest(
                request_id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
                prompt_token_ids=prompt,
                params=job.params,
                priority=request.priority or 0,
                cache_salt=request.cache_salt,
                tenant=request.user or "",
                deadline_s=None if request.deadline_ms is None else request.deadline_ms / 1000,
            )
            for index, prompt in enumerate(prompts)
        ]
        try:
            return self._engine.add_all(fan_out(new))
        except RequestTooLarge as error:
            # Too long for the model is one thing, too many at once another.
            fits = max(map(len, prompts)) < self._engine.max_model_len
            code = "request_too_large" if fits else "context_length_exceeded"
            raise bad_request(str(error), job.prompt_field, code) from None


def model_not_found(model: str, served: str) -> ApiError:
    message = f"The model {model!r} is not served here; {served!r} is."
    return ApiError(404, message, param="model", code="model_not_found")


async def _collect(streams: Sequence[RequestStream], answers: Sequence[Answer]) -> None:
    async with aclosing(_merge(streams)) as deltas:
        async for index, delta in deltas:
            answers[index].add(delta)


async def _stream(
    job: Job, streams: Sequence[RequestStream], answers: Sequence[Answer], events: EventStream
) -> None:
    """Sends the deltas of all prompts as they come, then the usage if asked for."""
    reply, opened = job.reply, [False] * len(streams)
    async with aclosing(_merge(streams)) as deltas:
        async for index, delta in deltas:
            chunks = [] if opened[index] else [reply.opening(index)]
            opened[index] = True
            # A token is told of at once, though its text may be none, or be held back: half a
            # character, or what may become a stop string. (vLLM does the same.)
            chunks.append(reply.chunk(index, delta, answers[index]))
            answers[index].add(delta)
            await events.send(msgspec.json.encode(chunk) for chunk in chunks if chunk is not None)
    closing = [b"[DONE]"]
    if job.request.include_usage:
        closing.insert(0, msgspec.json.encode(reply.usage_chunk(usage_of(answers))))
    await events.send(closing)
    await events.end()


async def _merge(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, OutputDelta]]:
    """The deltas of several streams, each with its stream's index, as they come.

    Raises `ApiError` where a request ends for any reason but `stop` and `length`.
    """
    if len(streams) == 1:
        async for delta in streams[0]:
            _check_end(delta)
            yield 0, delta
        return
    waiting = {_next(stream): index for index, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                following = task.result()
                index = waiting.pop(task)
                if following is not None:
                    _check_end(following)
                    waiting[_next(streams[index])] = index
                    yield index, following
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _next(stream: RequestStream) -> asyncio.Task[OutputDelta | None]:
    """The stream's next delta, or None at its end."""

    async def step() -> OutputDelta | None:
        return await anext(aiter(stream), None)

    return asyncio.create_task(step())


def _check_end(delta: OutputDelta) -> None:
    match delta.finish_reason:
        case None | "stop" | "length":
            return
        case "abort":
            raise EngineDead("The server ended the request: it is shutting down.")
        case "timeout":
            raise ApiError(503, "The request waited too long in the queue.", code="queue_timeout")
        case _:
            raise ApiError(500, delta.error or "The request failed.", code="generation_failed")
