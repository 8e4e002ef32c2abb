"""HTTP as ASGI messages: bodies with a limit, server-sent events, clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from headway.server.errors import ApiError
from headway.server.event import Event

__all__ = ["BodyRoom", "ClientGone", "EventStream", "read_body", "run_while_connected"]

_EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back otherwise
]


T = TypeVar("T")


BODY_WITHIN_S = 120.0
"""For a body to come, from the end of its headers."""

_LARGE_BYTES = 128 * 1024
_TIDY_AFTER_S = 1.0


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class BodyRoom:
    """What the bodies of all requests that are being answered may take together.

    `tidy` is called a second after a large one was let go, once for all that were in that time.
    """

    def __init__(self, num_bytes: int, tidy: Callable[[], None]) -> None:
        self._left = num_bytes
        self._tidy = tidy
        self._tidying: asyncio.TimerHandle | None = None

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Gives what takes so many bytes of it, until the end; that raises `ApiError` (429) where
        there are not as many."""
        held = 0

        def take(num_bytes: int) -> None:
            nonlocal held
            if num_bytes > self._left:
                raise ApiError(
                    429,
                    "The bodies of other requests take all the room that there is for them.",
                    code="bodies_full",
                    headers={"Retry-After": "1", "Connection": "close"},
                )
            self._left -= num_bytes
            held += num_bytes

        try:
            yield take
        finally:
            self._left += held
            if held >= _LARGE_BYTES and self._tidying is None:
                loop = asyncio.get_running_loop()
                self._tidying = loop.call_later(_TIDY_AFTER_S, self._tidy_now)

    def _tidy_now(self) -> None:
        self._tidying = None
        self._tidy()


async def read_body(
    scope: Scope,
    receive: Receive,
    limit: int,
    *,
    take: Callable[[int], None] = lambda _: None,
    within_s: float = BODY_WITHIN_S,
) -> bytes:
    """The whole body, for which room is taken as it comes. Raises `ApiError`: 413 as soon as it is
    known to exceed `limit` bytes, 408 where it has not come in time, and what `take` raises."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(within_s):
            return await _receive_body(receive, limit, take)
    except TimeoutError:
        raise ApiError(
            408,
            f"The body has not come within {within_s:g} s.",
            code="body_timeout",
            headers={"Connection": "close"},
        ) from None


async def _receive_body(receive: Receive, limit: int, take: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        take(len(part))
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The body exceeds {limit} bytes.",
        code="body_too_large",
        headers={"Connection": "close"},
    )


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end, or cancels it as soon as the client is gone.

    The body must have been read. Returns what `work` returns, raises what it raises, or
    `ClientGone`.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """A response of server-sent events. Nothing is sent before the first event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def send(self, events: Iterable[Event]) -> None:
        """Sends them all in one write; none is fine."""
        body = b"".join(event.encode() for event in events)
        if not body:
            return
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200}
            await self._send(start | {"headers": _EVENT_STREAM_HEADERS})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
