"""The open requests of an engine as asyncio sees them: streams of deltas."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from headway.core.plan import ChunkError
from headway.core.request import FinishReason
from headway.engine.outputs import OutputDelta
from headway.errors import HeadwayError, InvalidRequest

__all__ = ["MAX_UNREAD_TOKENS", "RequestStream", "Streams"]

MAX_UNREAD_TOKENS = 4096
"""Of one stream. Whoever leaves more unread is too slow for the model: the request is ended."""


class RequestStream:
    """The deltas of one request, as they come; ends after the one with a finish reason.

    Whoever holds it must read it to its end or `abort` it: until then the request runs on.
    One task reads it.
    """

    def __init__(self, request_id: str, on_abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._on_abort = on_abort
        self._deltas: deque[OutputDelta] = deque()
        self._num_unread = 0
        """Tokens in `_deltas`."""
        self._closed = False
        """Nothing is to come; what is unread may still be read."""
        self._error: HeadwayError | None = None
        """What the reader is told after that."""
        self._reader: asyncio.Future[None] | None = None
        """Set while it waits."""

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> OutputDelta:
        """Raises EngineDead where the engine has stopped."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        delta = self._deltas.popleft()
        self._num_unread -= len(delta.token_ids)
        return delta

    def abort(self) -> None:
        """Ends the request, if it has not ended; its blocks are free in the next plan."""
        if not self._closed:
            self._put(_end(self.request_id, FinishReason.ABORT))
            self._on_abort(self.request_id)

    def deliver(self, delta: OutputDelta) -> None:
        """Takes the next delta, unless the stream was ended here; ends a request that nobody
        reads."""
        if self._closed:
            return
        self._put(delta)
        if self._num_unread > MAX_UNREAD_TOKENS and not self._closed:
            message = f"the client reads too slowly: over {MAX_UNREAD_TOKENS} tokens wait for it"
            self._put(_end(self.request_id, FinishReason.ERROR, ChunkError(message)))
            self._on_abort(self.request_id)

    def fail(self, error: HeadwayError) -> None:
        if not self._closed:
            self._closed = True
            self._error = error
            self._wake()

    def _put(self, delta: OutputDelta) -> None:
        self._deltas.append(delta)
        self._num_unread += len(delta.token_ids)
        self._closed = delta.finish_reason is not None
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Streams:
    """Streams by the ids of their requests, for one event loop.

    An id is taken until the engine has told the request's end, also where it was ended from here:
    else the end of one request could be taken for that of the next.

    Args:
        on_abort: ends a request in the engine, whose last delta then comes, or is on its way.
    """

    def __init__(self, on_abort: Callable[[str], None]) -> None:
        self._on_abort = on_abort
        self._streams: dict[str, RequestStream] = {}

    def open(self, request_ids: Sequence[str]) -> list[RequestStream]:
        """Before the engine is given the requests. Raises InvalidRequest for an id that is taken,
        and opens none then."""
        for request_id in request_ids:
            if request_id in self._streams:
                raise InvalidRequest("request_id", f"{request_id!r} is in use")
        streams = [RequestStream(request_id, self._on_abort) for request_id in request_ids]
        self._streams.update(zip(request_ids, streams, strict=True))
        return streams

    def forget(self, streams: Iterable[RequestStream]) -> None:
        """The engine has not accepted them."""
        for stream in streams:
            if self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]

    def deliver(self, deltas: Iterable[OutputDelta]) -> None:
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.deliver(delta)
                if delta.finish_reason is not None:
                    del self._streams[delta.request_id]

    def abort_all(self) -> None:
        for stream in list(self._streams.values()):
            stream.abort()

    def fail_all(self, error: HeadwayError) -> None:
        """The engine is gone: nothing more comes for any of them."""
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()


def _end(request_id: str, reason: FinishReason, error: ChunkError | None = None) -> OutputDelta:
    return OutputDelta(request_id, "", (), reason.value, error=error)
