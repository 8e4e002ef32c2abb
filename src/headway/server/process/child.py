"""The engine's process: `python -m headway.server.process.child SOCKET FACTORY LOG_FORMAT`.

    reader (main thread)   takes requests to the engine and answers at once
    headway-step           runs the steps
    headway-writer         sends what the others have to say: a server that does not read holds up
                           this thread alone
    headway-heartbeat      says that the interpreter lives, and for how long a step has run

It ends with its server: when the socket closes, whatever it is doing. Signals are the server's
affair, which decides what becomes of the requests.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pkgutil
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NoReturn, Protocol

from headway.clock import MonotonicClock
from headway.config import EngineArgs, EngineConfig
from headway.core.request import FinishReason
from headway.engine.collector import calm_collector
from headway.engine.core import EngineCore, Grammars
from headway.engine.exactness import Exactness
from headway.engine.loop import StepLoop
from headway.engine.outputs import NewRequest, OutputDelta
from headway.engine.progress import StepEstimate
from headway.errors import EngineDead, HeadwayError
from headway.server.memory import return_memory, share_one_arena
from headway.server.process.messages import (
    Abort,
    Add,
    CheckRoom,
    Done,
    Ended,
    Failed,
    Failure,
    Frames,
    FromEngine,
    Heartbeat,
    Progress,
    Ready,
    Refused,
    Start,
    Stepped,
    Stop,
    ToEngine,
    decode_to_engine,
    pack,
)
from headway.server.watch.logs import configure_logs
from headway.server.watch.stats import CacheInfo, StatsObserver, StepStats

__all__ = ["Built", "Factory", "main"]

HEARTBEAT_S = 0.5
_END_WITHIN_S = 1.5
"""For the step that runs, so that the recording ends whole; then it ends where it is."""
_RECEIVE_BYTES = 1 << 18

logger = logging.getLogger("headway.server.process.child")  # `__name__` is `__main__` here


class Built(Protocol):
    """What a factory makes; `headway.llm.Engine` is one."""

    @property
    def core(self) -> EngineCore: ...
    @property
    def config(self) -> EngineConfig: ...
    @property
    def exactness(self) -> Exactness: ...
    def banner(self) -> str: ...


class Factory(Protocol):
    """`headway.llm.build_engine`, or what a test puts in its place."""

    def __call__(self, args: EngineArgs, *, progress: Callable[[str], None]) -> Built: ...


def main(argv: Sequence[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()  # a fault in native code tells where
    faulthandler.register(signal.SIGUSR1)  # the server asks so before it kills a hung engine
    share_one_arena()  # before there are threads
    _, fileno, factory, log_format = argv
    configure_logs(log_format, sys.stderr)
    Child(socket.socket(fileno=int(fileno))).run(factory)


class Child:
    """One engine and the server's end of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._outbox: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
        self._frames = Frames()
        self._inbox: list[bytes] = []
        """Received and not taken, the next one last."""
        self._clock = MonotonicClock()
        self._estimate = StepEstimate()
        self._stats: list[StepStats] = []
        """Since the last message; touched in the step thread alone."""
        self._core: EngineCore | None = None
        self._steps: StepLoop | None = None
        self._coming: set[str] = set()
        """Requests that wait for what they are held to to be compiled."""
        self._coming_lock = threading.Lock()

    def run(self, factory: str) -> None:
        threading.Thread(target=self._write, name="headway-writer", daemon=True).start()
        threading.Thread(target=self._beat, name="headway-heartbeat", daemon=True).start()
        try:
            build: Factory = pkgutil.resolve_name(factory)  # imports PyTorch, for one
            start = self._receive()
            assert isinstance(start, Start)
            built = build(start.args, progress=lambda line: self._outbox.put(Progress(line)))
        except HeadwayError as error:
            self._fail(Failure.of(error))
        except Exception as error:
            logger.exception("the engine cannot start")
            reason = f"the engine cannot start: {type(error).__name__}: {error}"
            self._fail(Failure.of(EngineDead(reason)))
        self._begin(built)
        while not isinstance(message := self._receive(), Stop):
            self._take(message)
        self._end()

    def _begin(self, built: Built) -> None:
        self._core = built.core
        self._core.add_observer(self._estimate)
        self._core.add_observer(
            StatsObserver(lambda: built.core.state, self._clock.now, self._stats.append)
        )
        self._steps = StepLoop(
            built.core,
            deliver=self._tell,
            failed=lambda reason: self._outbox.put(Ended(reason)),
            clock=self._clock,
            tidy=return_memory,
        )
        config = built.config
        ready = Ready(config.max_model_len, built.exactness, CacheInfo.of(config), built.banner())
        calm_collector()
        self._steps.start()
        self._outbox.put(ready)

    def _take(self, message: ToEngine) -> None:
        core, steps = self._core, self._steps
        assert core is not None
        assert steps is not None
        match message:
            case Add():
                new = message.new_requests()
                with self._coming_lock:
                    self._coming.update(request.request_id for request in new)
                # Called at once where there is nothing to compile, else in the compiler's thread.
                core.compile(new).add_done_callback(partial(self._add, message.ticket, new))
            case CheckRoom():
                self._answer(message.ticket, lambda: core.check_room(message.num_reqs))
            case Abort():
                delta = self._abort(message.request_id)
                if delta is not None:
                    self._outbox.put(Stepped([delta], []))
                    steps.wake()

    def _add(self, ticket: int, new: list[NewRequest], compiled: Future[Grammars]) -> None:
        """All but those that were aborted meanwhile."""
        core, steps = self._core, self._steps
        assert core is not None
        assert steps is not None
        with self._coming_lock:
            left = [request for request in new if request.request_id in self._coming]
            self._coming.difference_update(request.request_id for request in left)
            self._answer(ticket, lambda: core.add(left, compiled.result()))
        steps.wake()

    def _abort(self, request_id: str) -> OutputDelta | None:
        assert self._core is not None
        with self._coming_lock:
            if request_id in self._coming:
                self._coming.remove(request_id)
                return OutputDelta(request_id, "", (), FinishReason.ABORT.value)
        return self._core.abort(request_id)

    def _answer(self, ticket: int, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            if not isinstance(error, HeadwayError):
                logger.exception("a request failed for no reason of its own")
            self._outbox.put(Refused(ticket, Failure.of(error)))
        else:
            self._outbox.put(Done(ticket))

    def _tell(self, deltas: list[OutputDelta]) -> None:
        """Called in the step thread."""
        if deltas or self._stats:
            self._outbox.put(Stepped(deltas, self._stats.copy()))
            self._stats.clear()

    def _receive(self) -> ToEngine:
        """The next message. Does not return once the server is gone."""
        while not self._inbox:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except OSError:
                data = b""
            if not data:
                self._end()
            self._inbox = list(self._frames.feed(data))[::-1]
        return decode_to_engine(self._inbox.pop())

    def _write(self) -> None:
        while True:
            try:
                self._sock.sendall(pack(self._outbox.get()))
            except OSError:
                # The server is gone. The reader sees that too, unless it is loading a model.
                if self._core is None:
                    os._exit(1)
                return

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_S):
            steps, core = self._steps, self._core
            step_s = None if steps is None else steps.step_s
            estimate_s = 0.0
            if step_s is not None and core is not None:
                estimate_s = self._estimate.seconds(core.tokens_in_flight)
            self._outbox.put(Heartbeat(step_s, estimate_s))

    def _fail(self, failure: Failure) -> NoReturn:
        self._outbox.put(Failed(failure))
        with contextlib.suppress(OSError):
            while self._sock.recv(_RECEIVE_BYTES):
                pass  # until the server has read it, and hangs up
        os._exit(1)

    def _end(self) -> NoReturn:
        """Ends what was recorded, and the process: taking PyTorch down can take seconds."""
        deadline = threading.Timer(_END_WITHIN_S, os._exit, (1,))
        deadline.daemon = True
        deadline.start()
        if self._steps is not None and self._core is not None:
            self._steps.stop()
            self._core.close()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
