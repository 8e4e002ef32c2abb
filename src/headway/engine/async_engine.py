"""The engine for asyncio callers in the same process: the step loop runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headway.clock import Clock, MonotonicClock
from headway.engine.core import EngineCore
from headway.engine.loop import StepLoop
from headway.engine.outputs import NewRequest, OutputDelta
from headway.engine.streams import RequestStream, Streams
from headway.errors import EngineDead
from headway.metrics import EngineState, Observer

__all__ = ["AsyncEngine"]


class AsyncEngine:
    """One `EngineCore` and its loop thread.

    All methods are for the event loop in which `start` was called.
    """

    def __init__(self, core: EngineCore, *, clock: Clock | None = None) -> None:
        self._core = core
        self._streams = Streams(self._abort)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps = StepLoop(
            core, deliver=self._deliver, failed=self._fail, clock=clock or MonotonicClock()
        )

    @property
    def is_alive(self) -> bool:
        """The step loop runs."""
        return self._steps.is_alive

    @property
    def state(self) -> EngineState:
        """For observers alone."""
        return self._core.state

    def add_observer(self, observer: Observer) -> None:
        """`observer` is called in the step thread."""
        self._core.add_observer(observer)

    def start(self) -> None:
        """Starts the step loop; deltas go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._steps.start()

    def stop(self) -> None:
        """Ends all requests, and the loop after the step it is in. Waits for that."""
        self._streams.abort_all()
        self._steps.stop()

    async def check_room(self, num_reqs: int = 1) -> None:
        """Raises QueueFull: to be asked before any work on a prompt."""
        self._core.check_room(num_reqs)

    async def add(self, requests: Sequence[NewRequest]) -> list[RequestStream]:
        """Accepts all of them at once, or raises InvalidRequest, QueueFull or EngineDead and
        accepts none."""
        grammars = await asyncio.wrap_future(self._core.compile(requests))
        if not self.is_alive:
            raise EngineDead("the engine has stopped and takes no requests")
        streams = self._streams.open([request.request_id for request in requests])
        try:
            self._core.add(requests, grammars)
        except BaseException:
            self._streams.forget(streams)
            raise
        self._steps.wake()
        return streams

    def _abort(self, request_id: str) -> None:
        delta = self._core.abort(request_id)
        if delta is not None:  # else its last delta is on its way here
            self._streams.deliver([delta])
            self._steps.wake()

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        if deltas:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._streams.deliver, deltas)

    def _fail(self, message: str) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._streams.fail_all, EngineDead(message))
