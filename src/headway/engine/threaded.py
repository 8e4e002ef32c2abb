"""An executor in a thread of its own: the next plan is made while a step runs (rule S11)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from headway.core.plan import Executor, StepPlan, StepResult

__all__ = ["ThreadedExecutor"]

T = TypeVar("T")


class ThreadedExecutor:
    """Implements `Executor` over another, all of whose work is done in one thread.

    `make` is called there too: OpenMP keeps a pool of threads for each thread that computes, and
    PyTorch a number of threads. The thread ends with `close`, or else with this object or the
    process, after what was submitted.

    Submit and collect from one thread. A `collect` that raises, be it for Ctrl-C, voids what was
    submitted by then: what has not begun will not.

    Args:
        make: makes the executor; what it raises is raised here.
        beside: one whose thread is to be shared. It must be closed last, and only there.
    """

    def __init__(
        self, make: Callable[[], Executor], *, beside: ThreadedExecutor | None = None
    ) -> None:
        self._owns_thread = beside is None
        self._thread: ThreadPoolExecutor = (
            ThreadPoolExecutor(1, thread_name_prefix="headway-executor")
            if beside is None
            else beside._thread
        )
        self._era = 0
        """Goes up with each `collect` that raises: plans of an era before are void."""
        self._failed_era = -1
        """The last era that a plan failed in; set by the thread, before `collect` tells of it."""
        self.inner: Executor = self._thread.submit(make).result()

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """Returns at once."""
        return self._thread.submit(self._run, plan, self._era)

    def collect(self, handle: Future[StepResult]) -> StepResult:
        try:
            return handle.result()
        except BaseException:
            self._era += 1
            raise

    def ended(self, handle: Future[StepResult], timeout_s: float) -> bool:
        """Waits for the step, at most so long; whether it has ended. It is not collected yet."""
        return bool(wait((handle,), timeout_s).done)

    def block_copy_s(self) -> float:
        return self.do(self.inner.block_copy_s)

    def do(self, work: Callable[[], T]) -> T:
        """Does something else in the thread, after what was submitted."""
        return self._thread.submit(work).result()

    def close(self) -> None:
        """Ends the thread, after the step it is in. Nothing may be submitted after this."""
        if self._owns_thread:
            self._thread.shutdown(cancel_futures=True)

    def _run(self, plan: StepPlan, era: int) -> StepResult:
        if era != self._era or era == self._failed_era:
            raise RuntimeError(f"step {plan.step} is void: one before it failed")
        try:
            return self.inner.collect(self.inner.submit(plan))
        except BaseException:
            self._failed_era = era
            raise
