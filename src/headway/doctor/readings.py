"""What happened within a window: increases, levels, distributions and trends.

Nothing here is a counter's value since its engine began: what counts is by how much it rose. A
counter that fell tells of a restart, after which all of that engine's counters begin at 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from headway.doctor.series import Buckets, Family, Sample, Series

__all__ = ["Distribution", "Levels", "Trend", "Window", "trend"]

_TREND_BINS = 8


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram took up within a window: an observation at least."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    """Observations up to each bound."""
    sum: float

    @property
    def count(self) -> float:
        return self.counts[-1]

    @property
    def mean(self) -> float:
        return self.sum / self.count

    def quantile(self, share: float) -> float:
        """As Prometheus' histogram_quantile: linear within a bucket, and the last finite bound
        for what lies beyond."""
        rank = share * self.count
        index = bisect_left(self.counts, rank)
        if index >= len(self.bounds) - 1:
            return self.bounds[-2] if len(self.bounds) > 1 else math.inf
        below, start = (self.counts[index - 1], self.bounds[index - 1]) if index else (0.0, 0.0)
        inside = self.counts[index] - below
        part = (rank - below) / inside if inside else 0.0
        return start + (self.bounds[index] - start) * part


class Levels(NamedTuple):
    """A gauge's values, in the order of time; at least one."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def max(self) -> float:
        return max(self.values)

    def share(self, holds: Callable[[float], bool]) -> float:
        """Of the samples, those of which it holds."""
        return sum(map(holds, self.values)) / len(self.values)


class Trend(NamedTuple):
    """Whether values rise, and how."""

    rise: float
    """From the mean of the first quarter to that of the last."""
    late_rise: float
    """From the third quarter to the last: a third of `rise` where it is steady, and none where
    something rose once."""
    z: float
    """Of Mann and Kendall's test: standard deviations from no trend. 0 with too few samples."""


def trend(values: Sequence[float]) -> Trend:
    """Of at least one value. They are averaged in a few bins first: the test takes its values for
    independent, and a queue's length is nearly what it was a second ago."""
    quarter = max(1, len(values) // 4)
    first, third, last = (
        _mean(values[start : start + quarter])
        for start in (0, max(0, len(values) - 2 * quarter), len(values) - quarter)
    )
    return Trend(last - first, last - third, _mann_kendall(_binned(values)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _binned(values: Sequence[float]) -> list[float]:
    if len(values) <= _TREND_BINS:
        return list(values)
    edges = [round(index * len(values) / _TREND_BINS) for index in range(_TREND_BINS + 1)]
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def _mann_kendall(values: Sequence[float]) -> float:
    """The normal approximation with ties (Mann 1945, Kendall 1975)."""
    n = len(values)
    score = sum(
        (later > earlier) - (later < earlier)
        for index, earlier in enumerate(values)
        for later in values[index + 1 :]
    )
    ties = [values.count(value) for value in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0 or score == 0:
        return 0.0
    return (score - math.copysign(1, score)) / math.sqrt(variance)


class Window:
    """One engine's samples, read as what happened between the first and the last of them."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self._samples = series.samples

    @property
    def duration_s(self) -> float:
        return self._samples[-1].time_s - self._samples[0].time_s if self._samples else 0.0

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def last(self, duration_s: float) -> Window | None:
        """Its end, of at least so long; None: it is shorter itself."""
        since = self._samples[-1].time_s - duration_s if self._samples else 0.0
        first = sum(sample.time_s <= since for sample in self._samples) - 1
        if first < 0:
            return None
        return Window(replace(self.series, samples=self._samples[first:]))

    def info(self, name: str) -> str | None:
        return self._samples[-1].info.get(name) if self._samples else None

    def limit(self, name: str) -> int | None:
        """An option that counts something, where the engine tells it."""
        text = self.info(name)
        return int(text) if text is not None and text.isdecimal() else None

    @cached_property
    def _restarted(self) -> tuple[bool, ...]:
        return tuple(_began_anew(*pair) for pair in pairwise(self._samples))

    @property
    def num_restarts(self) -> int:
        """Of the process that counts."""
        return sum(self._restarted)

    def increase(self, name: str, **labels: str) -> float | None:
        """By how much a counter rose, over all series that have the labels.

        None: the engine does not tell it.
        """
        if not self._samples or name not in self._samples[-1].counters:
            return None
        wanted = frozenset(labels.items())
        at = [_total(sample.counters.get(name, {}), wanted) for sample in self._samples]
        return sum(
            (later if anew else later - earlier)
            for (earlier, later), anew in zip(pairwise(at), self._restarted, strict=True)
        )

    def rate(self, name: str, **labels: str) -> float | None:
        """The same per second."""
        risen = self.increase(name, **labels)
        return None if risen is None or not self.duration_s else risen / self.duration_s

    def hit_rate(self, cache: str = "prefix_cache") -> float | None:
        """Of the tokens that a cache was asked for, the share that it had. None: the engine does
        not tell it, or nothing was asked."""
        asked, found = (self.increase(f"{cache}_{what}") for what in ("queries", "hits"))
        return found / asked if asked and found is not None else None

    @property
    def num_requests(self) -> float:
        """Those that ended within it, and those that were there at its end."""
        present = (self.levels(f"num_requests_{state}") for state in ("running", "waiting"))
        return (self.increase("request_success") or 0.0) + sum(
            levels.values[-1] for levels in present if levels
        )

    def levels(self, name: str, **labels: str) -> Levels | None:
        """A gauge's values, added up over all series that have the labels, in the samples that
        have it. None: there is none."""
        wanted = frozenset(labels.items())
        found = [
            _total(sample.gauges[name], wanted)
            for sample in self._samples
            if any(wanted <= each for each in sample.gauges.get(name, ()))
        ]
        return Levels(tuple(found)) if found else None

    def distribution(self, name: str) -> Distribution | None:
        """What a histogram took up. None: nothing, or the engine does not have it."""
        counts: list[float] = []
        bounds: tuple[float, ...] = ()
        total = 0.0
        for (before, after), anew in zip(pairwise(self._samples), self._restarted, strict=True):
            later = after.histograms.get(name)
            if later is None:
                continue
            earlier = before.histograms.get(name)
            if earlier is None or anew or earlier.bounds != later.bounds:
                earlier = Buckets(later.bounds, (0.0,) * len(later.bounds), 0.0)
            if bounds != later.bounds:
                bounds, counts, total = later.bounds, [0.0] * len(later.bounds), 0.0
            for index, (old, new) in enumerate(zip(earlier.counts, later.counts, strict=True)):
                counts[index] += new - old
            total += later.sum - earlier.sum
        return Distribution(bounds, tuple(counts), total) if counts and counts[-1] else None


def _total(family: Family, wanted: frozenset[tuple[str, str]]) -> float:
    return sum(value for labels, value in family.items() if wanted <= labels)


def _began_anew(before: Sample, after: Sample) -> bool:
    """Its process was replaced: it says so, or something that only rises has fallen."""
    if None not in (before.started_s, after.started_s) and before.started_s != after.started_s:
        return True
    for name, family in before.counters.items():
        later = after.counters.get(name, {})
        if any(value > later.get(labels, 0.0) for labels, value in family.items()):
            return True
    return any(
        buckets.counts[-1] > after.histograms[name].counts[-1]
        for name, buckets in before.histograms.items()
        if name in after.histograms
    )
