"""Sources read again and again, into one series for each engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from headway.clock import Clock
from headway.doctor.series import Failure, Sample, Series
from headway.doctor.sources import Page, Source
from headway.errors import NotReachable, SourceError

__all__ = ["Watcher", "watch"]

_ROUNDING = 1e-9


class Watcher:
    """Reads all sources at once, and keeps what lies within a window.

    Args:
        sources: at least one; their names differ.
        clock: of the samples.
        window_s: how far back samples are kept.
    """

    def __init__(self, sources: Sequence[Source], *, clock: Clock, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._watched = [_Watched(source) for source in sources]
        self._pool = ThreadPoolExecutor(len(sources), thread_name_prefix="headway-doctor")
        self._num_reads = 0

    def read(self) -> None:
        """One sample of each.

        Raises SourceError for a source that will never tell anything, or is several, and, the
        first time, where none does.
        """
        answers = list(self._pool.map(self._read, self._watched))
        self._num_reads += 1
        failures = [answer for answer in answers if isinstance(answer, NotReachable)]
        if self._num_reads == 1 and len(failures) == len(answers):
            raise failures[0]
        since = self._clock.now() - self._window_s
        for watched, answer in zip(self._watched, answers, strict=True):
            watched.take(answer, self._clock.now())
            watched.forget(since)

    def series(self) -> list[Series]:
        return [series for watched in self._watched for series in watched.series()]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, watched: _Watched) -> Page | NotReachable:
        try:
            return watched.source.read(self._clock.now)
        except NotReachable as error:
            return error
        except SourceError as error:
            # What told its metrics before may be about to go, or to come back.
            if self._num_reads == 0:
                raise
            return NotReachable(str(error))


def watch(
    watcher: Watcher,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    for_s: float,
    every_s: float,
) -> list[Series]:
    """Reads every `every_s` seconds for `for_s` seconds, at least twice. Raises as `read` does."""
    start, num_reads = clock.now(), 0
    while True:
        watcher.read()
        num_reads += 1
        # By the start's clock: what a read takes must not add up, and a slow one is left out.
        done = math.floor((clock.now() - start) / every_s + _ROUNDING) + 1
        if num_reads >= 2 and done * every_s > for_s * (1 + _ROUNDING):
            return watcher.series()
        sleep(max(0.0, start + done * every_s - clock.now()))


class _Watched:
    """A source, and what it has told."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._flavour = "headway"
        self._samples: dict[str, deque[Sample]] = {}
        self._failures: deque[Failure] = deque()
        self._starts: list[float] = []
        """Of its processes, in the order in which they were seen."""

    def take(self, answer: Page | NotReachable, now: float) -> None:
        if isinstance(answer, NotReachable):
            self._failures.append(Failure(now, str(answer)))
            return
        if answer.lost is not None:
            self._failures.append(Failure(now, answer.lost))
        self._flavour = answer.metrics.flavour
        for engine, sample in answer.metrics.engines.items():
            self._check_start(sample.started_s)
            self._samples.setdefault(engine, deque()).append(sample)

    def _check_start(self, started_s: float | None) -> None:
        """A process that was replaced does not come back."""
        if started_s is None or self._starts[-1:] == [started_s]:
            return
        if started_s in self._starts:
            raise SourceError(
                f"there are several servers behind {self.source.name}: give each its own URL"
            )
        self._starts.append(started_s)

    def forget(self, since: float) -> None:
        """What is older; of an engine that tells nothing any more the last samples stay."""
        for samples in self._samples.values():
            while len(samples) > 2 and samples[0].time_s < since:
                samples.popleft()
        while self._failures and self._failures[0].time_s < since:
            self._failures.popleft()

    def series(self) -> list[Series]:
        several = len(self._samples) > 1
        return [
            Series(
                source=self.source.name,
                engine=engine if several else "",
                flavour=self._flavour,
                samples=tuple(samples),
                failures=tuple(self._failures),
            )
            for engine, samples in (self._samples or {"": deque[Sample]()}).items()
        ]
