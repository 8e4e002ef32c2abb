"""Prometheus' counters, gauges and histograms, named and labelled as the operator asks.

A metric that vLLM has too, with the same meaning, is in the namespace that was asked for; all
others are Headway's own, whatever that is. Labels that all of them have are `engine`, which is 0,
and `model_name`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

__all__ = ["OTHER", "Bounded", "Instruments"]

_OWN = "headway"
_ENGINE = "0"

OTHER = "other"
"""The label's value for all that a `Bounded` has no room for."""


class Instruments:
    """Makes metrics in a registry of its own.

    Args:
        namespace: of the metrics that vLLM has too: `headway` or `vllm`.
    """

    def __init__(self, model_name: str, namespace: str = _OWN) -> None:
        # Else each counter has a second series, which says when it began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.namespace = namespace
        self._registry = CollectorRegistry()
        self._labels = {"engine": _ENGINE, "model_name": model_name}

    def process_started(self, unix_s: float) -> None:
        """Under the name that Prometheus' own clients have for it, without labels."""
        Gauge(
            "process_start_time_seconds",
            "When the server's process began, in Unix time",
            registry=self._registry,
        ).set(unix_s)

    def render(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)

    def gauge(self, name: str, text: str, *, own: bool = False) -> Gauge:
        return self._gauge(name, text, own).labels(*self._labels.values())

    def counter(self, name: str, text: str, *, own: bool = False) -> Counter:
        return self._counter(name, text, own).labels(*self._labels.values())

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], *, own: bool = False
    ) -> Histogram:
        family = Histogram(
            self._name(name, own),
            text,
            list(self._labels),
            registry=self._registry,
            buckets=buckets,
        )
        return family.labels(*self._labels.values())

    def gauges(
        self, name: str, text: str, label: str, values: Sequence[str], *, own: bool = False
    ) -> Mapping[str, Gauge]:
        """One for each value of the label."""
        family = self._gauge(name, text, own, label)
        return MappingProxyType(
            {value: family.labels(*self._labels.values(), value) for value in values}
        )

    def counters(
        self, name: str, text: str, label: str, values: Sequence[str], *, own: bool = False
    ) -> Mapping[str, Counter]:
        """One for each value of the label; every one is there from the start, at 0."""
        family = self._counter(name, text, own, label)
        return MappingProxyType(
            {value: family.labels(*self._labels.values(), value) for value in values}
        )

    def bounded(self, name: str, text: str, labels: Sequence[str], most: int) -> Bounded:
        """Counters of which nobody knows the labels' values before."""
        return Bounded(self._counter(name, text, True, *labels), self._labels, len(labels), most)

    def info(self, name: str, text: str, values: Mapping[str, str]) -> None:
        """What does not change: the labels say it, the value is 1."""
        self._gauge(name, text, False, *values).labels(
            *self._labels.values(), *values.values()
        ).set(1)

    def _gauge(self, name: str, text: str, own: bool, *labels: str) -> Gauge:
        names = [*self._labels, *labels]
        return Gauge(self._name(name, own), text, names, registry=self._registry)

    def _counter(self, name: str, text: str, own: bool, *labels: str) -> Counter:
        names = [*self._labels, *labels]
        return Counter(self._name(name, own), text, names, registry=self._registry)

    def _name(self, name: str, own: bool) -> str:
        return f"{_OWN if own else self.namespace}:{name}"


class Bounded:
    """Counters by labels whose values come from outside: the first `most` combinations get a
    series each, and all others share one, in which the first label is `other`."""

    def __init__(
        self, family: Counter, fixed: Mapping[str, str], num_labels: int, most: int
    ) -> None:
        self._family = family
        self._fixed = tuple(fixed.values())
        self._num_labels = num_labels
        self._most = most
        self._series: dict[tuple[str, ...], Counter] = {}

    def add(self, amount: float, *values: str) -> None:
        series = self._series.get(values)
        if series is None:
            if len(self._series) >= self._most:
                values = (OTHER,) + ("",) * (self._num_labels - 1)
            series = self._series[values] = self._family.labels(*self._fixed, *values)
        series.inc(amount)
