"""Compiling grammars away from the loops: in threads of its own, under a deadline, each once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier, Lock, Timer

from headway.core.structured import Grammar, StructuredOutputs
from headway.errors import QueueFull

__all__ = ["GrammarPool"]

_NUM_THREADS = 2
_MOST_WAITING = 64
_MOST_KEPT = 32
_STACK_BYTES = 512 << 20
"""Of address space. The compiler recurses along the references of a schema or a grammar, and a
stack that overflows ends the process; the largest that it takes needs under half of this."""


class GrammarPool:
    """Compiles grammars, and keeps the last ones. Any number of threads may share it.

    Args:
        compile_: compiles one; raises InvalidRequest.
        deadline_s: seconds that one may take, its wait for a thread included. What takes longer is
            refused; its thread is lost to others until it is done.
    """

    def __init__(
        self, compile_: Callable[[StructuredOutputs], Grammar], *, deadline_s: float = 5.0
    ) -> None:
        self._compile = compile_
        self._deadline_s = deadline_s
        self._threads: ThreadPoolExecutor | None = None
        """Begun with the first to compile."""
        self._lock = Lock()
        self._known: OrderedDict[StructuredOutputs, Future[Grammar]] = OrderedDict()
        """Compiled, or about to be; the one asked for last at the end."""
        self._num_open = 0

    def compile(self, asked: StructuredOutputs) -> Future[Grammar]:
        """Returns at once. The future may be shared, so it cannot be cancelled; it fails with
        InvalidRequest, or with QueueFull where too much was waiting before it."""
        with self._lock:
            if (known := self._known.get(asked)) is not None:
                self._known.move_to_end(asked)
                return known
            job = _Job(asked)
            if self._num_open >= _NUM_THREADS + _MOST_WAITING:
                job.future.set_exception(self._too_many())
                return job.future
            self._num_open += 1
            self._known[asked] = job.future
            threads = self._threads = self._threads or _threads()
        timer = Timer(self._deadline_s, self._expire, (job,))
        timer.daemon = True
        timer.start()
        threads.submit(self._work, job, timer)
        return job.future

    def close(self) -> None:
        """Ends the threads, each after what it compiles; the next to compile begins others."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def compile_all(
        self, asked: Collection[StructuredOutputs]
    ) -> Future[Mapping[StructuredOutputs, Grammar]]:
        """All of these, each once; the first to fail fails it."""
        parts = {item: self.compile(item) for item in asked}
        whole = Future[Mapping[StructuredOutputs, Grammar]]()
        found: dict[StructuredOutputs, Grammar] = {}

        def take(item: StructuredOutputs, part: Future[Grammar]) -> None:
            # Holds none of the parts, which hold it.
            with suppress(InvalidStateError):  # it has failed, or was cancelled
                if (error := part.exception()) is not None:
                    whole.set_exception(error)
                    return
                found[item] = part.result()
                if len(found) == len(asked):
                    whole.set_result(dict(found))

        for item, part in parts.items():
            part.add_done_callback(partial(take, item))
        return whole

    def _work(self, job: _Job, timer: Timer) -> None:
        """Leaves no cycle behind, in which a grammar would wait for the collector, which in an
        engine comes seldom: an error holds this frame."""
        job.began = True
        try:
            if not job.future.done():
                self._end(job, self._compile(job.asked))
        except BaseException as error:
            self._fail(job, error)
        finally:
            timer.cancel()
            with self._lock:
                self._num_open -= 1
            del job, timer

    def _expire(self, job: _Job) -> None:
        error: Exception = self._too_many()
        if job.began:
            error = job.asked.wrong(f"takes longer than {self._deadline_s:g} s to compile")
        self._fail(job, error)

    def _end(self, job: _Job, grammar: Grammar) -> None:
        with suppress(InvalidStateError):  # too late
            job.future.set_result(grammar)
        with self._lock:
            while len(self._known) > _MOST_KEPT and next(iter(self._known.values())).done():
                self._known.popitem(last=False)

    def _fail(self, job: _Job, error: BaseException) -> None:
        with self._lock:
            if self._known.get(job.asked) is job.future and not job.future.done():
                del self._known[job.asked]
        with suppress(InvalidStateError):
            job.future.set_exception(error)

    def _too_many(self) -> QueueFull:
        return QueueFull("too many grammars wait to be compiled", self._deadline_s)


def _threads() -> ThreadPoolExecutor:
    """With all threads begun, as the size of their stacks is set for all that begin."""
    threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="headway-grammar")
    all_begun = Barrier(_NUM_THREADS)
    usual = threading.stack_size(_STACK_BYTES)
    try:
        for _ in range(_NUM_THREADS):
            threads.submit(all_begun.wait)
    finally:
        threading.stack_size(usual)
    return threads


class _Job:
    def __init__(self, asked: StructuredOutputs) -> None:
        self.asked = asked
        self.future = Future[Grammar]()
        self.future.set_running_or_notify_cancel()  # from here on nobody can cancel it
        self.began = False
