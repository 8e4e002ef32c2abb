"""The paths that take a body: what they have in common, and how a generation is answered.

A request lives inside one coroutine. However that ends (answered, failed, the client gone,
the server stopping), what was started in the engine is aborted on the way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.engine.outputs import NewRequest, OutputDelta, fan_out
from headway.errors import EngineDead, InvalidRequest, RequestTooLarge
from headway.server.errors import ApiError, ErrorShape, bad_request, to_api_error
from headway.server.generation import (
    Answer,
    Computation,
    Endpoint,
    Job,
    ServedEngine,
    ServedModel,
    Stream,
    check_model,
)
from headway.server.renaming import name_in_body, renamed
from headway.server.transport import (
    BodyRoom,
    ClientGone,
    EventStream,
    read_body,
    run_while_connected,
)
from headway.server.watch.exchange import current_exchange
from headway.server.workers import Workers

__all__ = ["ComputingEndpoint", "GenerationEndpoint"]

MAX_BODY_BYTES = 32 * 2**20
MAX_COMPLETIONS = 2048
"""Of one HTTP request: prompts times `n`."""


class ComputingEndpoint:
    """An ASGI application that answers one path without the engine."""

    def __init__(self, computation: Computation, workers: Workers, room: BodyRoom) -> None:
        self._computation = computation
        self._workers = workers
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(self._compute, self._computation.errors, self._room, scope, receive, send)

    async def _compute(self, body: bytes, _events: EventStream) -> bytes:
        return await self._workers.run(len(body), partial(self._computation.answer, body))


class GenerationEndpoint:
    """An ASGI application that answers one path with what the model says."""

    def __init__(
        self,
        endpoint: Endpoint,
        engine: ServedEngine,
        model: ServedModel,
        workers: Workers,
        room: BodyRoom,
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._model = model
        self._workers = workers
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(self._generate, self._endpoint.errors, self._room, scope, receive, send)

    async def _generate(self, body: bytes, events: EventStream) -> bytes | None:
        """The answer in one piece; None where it was streamed."""
        job = await self._workers.run(len(body), partial(self._endpoint.read, body))
        check_model(job.model, self._model)
        _check_number(job)
        await self._check_room(job)
        prompts = await self._encode(job, len(body))
        answers = [
            answer for prompt in prompts for answer in Answer.of(prompt, job.params.n, job.parser)
        ]
        streams = await self._add(job, prompts)
        try:
            if job.stream:
                await _stream(job, streams, answers, events)
                return None
            await _collect(job, streams, answers)
            return job.reply.whole(answers)
        finally:
            for stream in streams:
                stream.abort()
            _note_usage(answers)

    async def _check_room(self, job: Job) -> None:
        """Before any work on the prompts."""
        try:
            await self._engine.check_room(job.num_prompts * job.params.n)
        except RequestTooLarge as error:
            raise _named(error, job, "request_too_large") from None

    async def _encode(self, job: Job, num_bytes: int) -> Sequence[Sequence[int]]:
        try:
            return await self._workers.run(num_bytes, job.encode)
        except RequestTooLarge as error:
            raise _named(error, job, "context_length_exceeded") from None
        except InvalidRequest as error:
            raise _named(error, job) from None

    async def _add(self, job: Job, prompts: Sequence[Sequence[int]]) -> Sequence[Stream]:
        request_id = job.reply.id
        if (exchange := current_exchange()) is not None:
            exchange.note_answer(request_id)
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
            raise _named(error, job, code) from None
        except InvalidRequest as error:
            raise _named(error, job) from None


async def _answer(
    work: Callable[[bytes, EventStream], Coroutine[Any, Any, bytes | None]],
    errors: ErrorShape,
    room: BodyRoom,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Reads a body and sends what `work` makes of it: its answer, or the events that it sent."""
    response: Callable[[Scope, Receive, Send], Awaitable[None]]
    try:
        with room.hold() as take:
            body = await read_body(scope, receive, MAX_BODY_BYTES, take=take)
            whole = await run_while_connected(receive, work(body, EventStream(send)))
        if whole is None:
            return
        response = Response(whole, media_type="application/json")
    except ClientGone:
        return
    except Exception as error:
        response = to_api_error(error).response(errors)
    await response(scope, receive, send)


def _check_number(job: Job) -> None:
    if job.num_prompts * job.params.n > MAX_COMPLETIONS:
        raise bad_request(
            f"n: {job.params.n} completions of {job.num_prompts} prompts; at most "
            f"{MAX_COMPLETIONS} go together",
            "n",
        )


def _named(error: InvalidRequest, job: Job, code: str | None = None) -> ApiError:
    """What is wrong with the prompt is wrong with the field that it came from."""
    error = renamed(error, job.names)
    return bad_request(str(error), error.field, code)


def _note_usage(answers: Sequence[Answer]) -> None:
    if (exchange := current_exchange()) is not None:
        exchange.note_usage(
            sum(len(answer.prompt_token_ids) for answer in answers if answer.counts_prompt),
            sum(answer.num_cached_tokens for answer in answers),
            sum(len(answer.token_ids) for answer in answers),
        )


async def _collect(job: Job, streams: Sequence[Stream], answers: Sequence[Answer]) -> None:
    async with aclosing(_merge(streams, job.names)) as deltas:
        async for index, delta in deltas:
            answers[index].add(delta)


async def _stream(
    job: Job, streams: Sequence[Stream], answers: Sequence[Answer], events: EventStream
) -> None:
    """Sends the deltas of all prompts as they come. Raises only before the first event."""
    reply = job.reply
    try:
        async with aclosing(_merge(streams, job.names)) as deltas:
            async for index, delta in deltas:
                piece = answers[index].add(delta)
                opening = [] if events.started else reply.begin(answers)
                await events.send([*opening, *reply.add(index, piece, answers[index])])
        await events.send(reply.end(answers))
    except Exception as error:
        if not events.started:
            raise
        await events.send(reply.fail(to_api_error(error)))
    await events.end()


async def _merge(
    streams: Sequence[Stream], names: Mapping[str, str]
) -> AsyncGenerator[tuple[int, OutputDelta]]:
    """The deltas of several streams, each with its stream's index, as they come.

    Raises `ApiError` where a request ends for any reason but `stop` and `length`.
    """
    if len(streams) == 1:
        async for delta in streams[0]:
            _check_end(delta, names)
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
                    _check_end(following, names)
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


def _check_end(delta: OutputDelta, names: Mapping[str, str]) -> None:
    """Raises `ApiError` where a request ended otherwise than well; `names` are its `Job`'s."""
    match delta.finish_reason:
        case None | "stop" | "length":
            return
        case "abort":
            raise EngineDead("The server ended the request: it is shutting down.")
        case "timeout":
            raise ApiError(503, "The request waited too long in the queue.", code="queue_timeout")
    if delta.error is not None and delta.error.fields:
        # Known only once it is tried: nothing that the request allows may come next.
        fields = [name_in_body(field, names) for field in delta.error.fields]
        raise bad_request(f"{', '.join(fields)}: {delta.error.message}", fields[0])
    raise ApiError(500, str(delta.error or "The request failed."), code="generation_failed")
