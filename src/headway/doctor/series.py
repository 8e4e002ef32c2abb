"""What a source tells of an engine: samples over time, whatever they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = ["Buckets", "Failure", "Family", "Labels", "Sample", "Series"]

Labels: TypeAlias = frozenset[tuple[str, str]]
"""Those that tell one engine's series of a metric apart."""
Family: TypeAlias = Mapping[Labels, float]


class Buckets(NamedTuple):
    """A histogram, cumulative in its buckets and over its life."""

    bounds: tuple[float, ...]
    """Upper ones, ascending; the last is infinite."""
    counts: tuple[float, ...]
    """Observations up to each bound."""
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An engine's metrics at one moment. Names are those of docs/guide/metrics.md, without a
    namespace and without `_total`; what a source does not tell is not there."""

    time_s: float
    gauges: Mapping[str, Family]
    counters: Mapping[str, Family]
    histograms: Mapping[str, Buckets]
    info: Mapping[str, str]
    """Options and sizes, as `num_gpu_blocks`."""
    started_s: float | None = None
    """When the process began that counts, in Unix time."""


class Failure(NamedTuple):
    """A source that did not answer, or said that its engine is lost."""

    time_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One engine, watched for a while."""

    source: str
    """A URL, or the path of a recording."""
    engine: str
    """Its label where one source tells of several; empty where it never told of any."""
    flavour: str
    """`headway` or `vllm`: whose options it has."""
    samples: tuple[Sample, ...]
    """In the order of time."""
    failures: tuple[Failure, ...] = ()
    """Of the source, in the order of time."""
    recorded: bool = False
    """It is a recording: of a scheduler, not of a server that answers or refuses."""

    @property
    def name(self) -> str:
        return f"{self.source} engine {self.engine}" if self.engine else self.source
