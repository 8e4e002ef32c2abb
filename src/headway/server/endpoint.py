"""A path that generates: from a body to an answer, whole or streamed.

A request lives inside one coroutine. However that ends (answered, failed, the client gone,
the server stopping), what was started in the engine is aborted on the way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.engine.outputs import NewRequest, OutputDelta, fan_out
from headway.errors import EngineDead, RequestTooLarge
from headway.server.errors import ApiError, bad_request, to_api_error
from headway.server.generation import Answer, Endpoint, Job, ServedEngine, ServedModel, Stream
from headway.server.transport import ClientGone, EventStream, read_body, run_while_connected

__all__ = ["GenerationEndpoint", "model_not_found"]

MAX_BODY_BYTES = 64 * 2**20
MAX_COMPLETIONS = 2048
"""Of one HTTP request: prompts times `n`."""

_LONG_BODY_BYTES = 8192
"""From here on prompts are tokenised in a thread, so that other clients' streams go on."""


class GenerationEndpoint:
    """An ASGI application that answers one path."""

    def __init__(
        self,
        endpoint: Endpoint,
        engine: ServedEngine,
        model: ServedModel,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._model = model
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
            if events.started:  # nobody is to take it for complete
                await events.send([self._endpoint.errors.event(api_error)])
                await events.end()
            else:
                await api_error.response(self._endpoint.errors)(scope, receive, send)

    async def _generate(self, body: bytes, events: EventStream) -> bytes | None:
        """The answer in one piece; None where it was streamed."""
        job = self._endpoint.read(body)
        if job.model is not None and job.model not in self._model.names:
            raise model_not_found(job.model, self._model)
        await self._engine.check_room(job.params.n)
        if len(body) < _LONG_BODY_BYTES:
            prompts = job.encode()
        else:
            prompts = await asyncio.to_thread(job.encode)
        streams = await self._add(job, prompts)
        answers = [
            answer for prompt in prompts for answer in Answer.of(prompt, job.params.n, job.parser)
        ]
        try:
            if job.stream:
                await _stream(job, streams, answers, events)
                return None
            await _collect(streams, answers)
            return job.reply.whole(answers)
        finally:
            for stream in streams:
                stream.abort()

    async def _add(self, job: Job, prompts: Sequence[Sequence[int]]) -> Sequence[Stream]:
        request_id = job.reply.id
        if len(prompts) * job.params.n > MAX_COMPLETIONS:
            raise bad_request(
                f"n: {job.params.n} completions of {len(prompts)} prompts; at most "
                f"{MAX_COMPLETIONS} go together",
                "n",
            )
        new = [
            NewRequest(
                request_id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
                prompt_token_ids=prompt,
                params=job.params,
                priority=job.priority,
                cache_salt=job.cache_salt,
                tenant=job.tenant,
                deadline_s=job.deadline_s,
                queue_timeout_s=job.queue_timeout_s,
            )
            for index, prompt in enumerate(prompts)
        ]
        try:
            return await self._engine.add(fan_out(new))
        except RequestTooLarge as error:
            # Too long for the model is one thing, too many at once another.
            fits = max(map(len, prompts)) < self._model.max_model_len
            code = "request_too_large" if fits else "context_length_exceeded"
            raise bad_request(str(error), job.prompt_field, code) from None


def model_not_found(name: str, model: ServedModel) -> ApiError:
    served = ", ".join(map(repr, model.names))
    message = f"The model {name!r} is not served here; {served} is."
    return ApiError(404, message, param="model", code="model_not_found")


async def _collect(streams: Sequence[Stream], answers: Sequence[Answer]) -> None:
    async with aclosing(_merge(streams)) as deltas:
        async for index, delta in deltas:
            answers[index].add(delta)


async def _stream(
    job: Job, streams: Sequence[Stream], answers: Sequence[Answer], events: EventStream
) -> None:
    """Sends the deltas of all prompts as they come."""
    reply = job.reply
    async with aclosing(_merge(streams)) as deltas:
        async for index, delta in deltas:
            opening = [] if events.started else reply.begin(answers)
            piece = answers[index].add(delta)
            await events.send([*opening, *reply.add(index, piece, answers[index])])
    await events.send(reply.end(answers))
    await events.end()


async def _merge(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, OutputDelta]]:
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


def _next(stream: Stream) -> asyncio.Task[OutputDelta | None]:
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
