"""The engine for asyncio callers: the step loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

from headway.core.request import FinishReason
from headway.engine.core import EngineCore
from headway.engine.outputs import NewRequest, OutputDelta
from headway.errors import EngineDead, InvalidRequest
from headway.metrics import Observer

__all__ = ["AsyncEngine", "RequestStream"]

logger = logging.getLogger(__name__)


class RequestStream:
    """The deltas of one request, as they come; ends after the one with a finish reason.

    Whoever holds it must read it to its end or `abort` it: until then the request runs on.
    """

    def __init__(self, engine: AsyncEngine, request_id: str) -> None:
        self.request_id = request_id
        self._engine = engine
        self._deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
        self._ended = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> OutputDelta:
        if self._ended:
            raise StopAsyncIteration
        delta = await self._deltas.get()
        self._ended = delta.finish_reason is not None
        return delta

    def abort(self) -> None:
        """Ends the request, if it has not ended; its blocks are free in the next plan."""
        self._engine.abort(self.request_id)

    def put(self, delta: OutputDelta) -> None:
        self._deltas.put_nowait(delta)


class AsyncEngine:
    """One `EngineCore` and its loop thread.

    All methods are for the event loop in which `start` was called.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._streams: dict[str, RequestStream] = {}
        """Requests that have not ended; touched in the event loop alone."""
        self._wake = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="headway-step", daemon=True)

    @property
    def is_alive(self) -> bool:
        """The step loop runs."""
        return self._thread.is_alive() and not self._stopping

    def add_observer(self, observer: Observer) -> None:
        """`observer` is called in the step thread."""
        self._core.add_observer(observer)

    def start(self) -> None:
        """Starts the step loop; deltas go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Ends all requests, and the loop after the step it is in. Waits for that."""
        for request_id in list(self._streams):
            self.abort(request_id)
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    async def check_room(self, num_reqs: int = 1) -> None:
        """Raises QueueFull: to be asked before any work on a prompt."""
        self._core.check_room(num_reqs)

    async def add(self, requests: Sequence[NewRequest]) -> list[RequestStream]:
        """Accepts all of them at once, or raises InvalidRequest, QueueFull or EngineDead and
        accepts none."""
        if not self.is_alive:
            raise EngineDead("the engine has stopped and takes no requests")
        for request in requests:
            # It may have ended in the step thread, and its last delta be on its way here.
            if request.request_id in self._streams:
                raise InvalidRequest("request_id", f"{request.request_id!r} is in use")
        self._core.add(requests)
        streams = [RequestStream(self, request.request_id) for request in requests]
        # A delta cannot overtake this: deltas arrive through this very event loop.
        self._streams.update((stream.request_id, stream) for stream in streams)
        self._wake.set()
        return streams

    def abort(self, request_id: str) -> None:
        delta = self._core.abort(request_id)
        if delta is not None:
            self._deliver([delta])
            self._wake.set()

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            # Absent: aborted while the step that made this delta was running.
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.put(delta)
                if delta.finish_reason is not None:
                    del self._streams[delta.request_id]

    def _run(self) -> None:
        assert self._loop is not None
        try:
            while not self._stopping:
                self._wake.clear()
                if not self._core.has_work:
                    self._wake.wait()
                    continue
                deltas = self._core.step()
                if deltas:
                    self._loop.call_soon_threadsafe(self._deliver, deltas)
        except Exception as error:
            logger.exception("the step loop has ended")
            self._stopping = True
            message = f"the engine has stopped: {type(error).__name__}: {error}"
            self._loop.call_soon_threadsafe(self._end_all, message)

    def _end_all(self, message: str) -> None:
        self._deliver(
            [
                OutputDelta(request_id, "", (), FinishReason.ERROR.value, error=message)
                for request_id in self._streams
            ]
        )
