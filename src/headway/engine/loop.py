"""The step loop: a thread that steps an engine for as long as it has work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headway.clock import Clock
from headway.engine.core import EngineCore
from headway.engine.outputs import OutputDelta

__all__ = ["StepLoop"]

_TIDY_AFTER_S = 1.0

logger = logging.getLogger(__name__)


class StepLoop:
    """One `EngineCore` in a thread of its own.

    Args:
        deliver: gets what each step comes to, which may be nothing. Called in the loop's thread.
        failed: is told why, once, where the loop ends by a fault of its own; there too.
        clock: says since when a step runs.
        tidy: is called once each time there has been nothing to do for `tidy_after_s`; there too.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        deliver: Callable[[list[OutputDelta]], None],
        failed: Callable[[str], None],
        clock: Clock,
        tidy: Callable[[], None] = lambda: None,
        tidy_after_s: float = _TIDY_AFTER_S,
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._failed = failed
        self._clock = clock
        self._tidy = tidy
        self._tidy_after_s = tidy_after_s
        self._began_s: float | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="headway-step", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    @property
    def step_s(self) -> float | None:
        """For how long the loop has been in the step it is in, for any thread; None: in none."""
        began_s = self._began_s
        return None if began_s is None else self._clock.now() - began_s

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There is work: to be called after each request that was added or ended."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the loop after the step it is in. Waits for that."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                if not self._core.has_work:
                    if not self._wake.wait(self._tidy_after_s):
                        self._tidy()
                        self._wake.wait()
                    continue
                self._began_s = self._clock.now()
                deltas = self._core.step()
                self._began_s = None
                self._deliver(deltas)
        except Exception as error:
            logger.exception("the step loop has ended")
            self._stopping = True
            self._began_s = None
            self._failed(f"the engine has stopped: {type(error).__name__}: {error}")
