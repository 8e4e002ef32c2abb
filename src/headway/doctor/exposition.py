"""Prometheus' text, from Headway or vLLM, as samples of each engine in it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headway.doctor.series import Buckets, Labels, Sample

__all__ = ["Exposition", "read_exposition"]

_NAMESPACES = ("headway:", "vllm:")
_START = "process_start_time_seconds"
_EVERYWHERE = frozenset({"engine", "model_name"})
_SHARES = "_perc"

_OLDER: Mapping[str, str] = MappingProxyType(
    {
        "gpu_cache_usage_perc": "kv_cache_usage_perc",
        "gpu_prefix_cache_queries": "prefix_cache_queries",
        "gpu_prefix_cache_hits": "prefix_cache_hits",
        "time_per_output_token_seconds": "inter_token_latency_seconds",
        "iteration_tokens": "iteration_tokens_total",
    }
)
"""Names of older versions of vLLM → what they are called now."""


class Exposition(NamedTuple):
    """A page of metrics."""

    flavour: str
    """`headway` or `vllm`."""
    engines: Mapping[str, Sample]
    """By their label; without one: "0"."""


class _Engine:
    """A sample in the making."""

    def __init__(self) -> None:
        self.gauges: dict[str, dict[Labels, float]] = {}
        self.counters: dict[str, dict[Labels, float]] = {}
        self.bounds: dict[str, dict[float, float]] = {}
        self.sums: dict[str, float] = defaultdict(float)
        self.info: dict[str, str] = {}

    def sample(self, time_s: float, started_s: float | None) -> Sample:
        return Sample(
            time_s=time_s,
            gauges=self.gauges,
            counters=self.counters,
            histograms={
                name: Buckets(
                    tuple(sorted(at)), tuple(at[le] for le in sorted(at)), self.sums[name]
                )
                for name, at in self.bounds.items()
                if math.inf in at
            },
            info=self.info,
            started_s=started_s,
        )


def read_exposition(text: str, time_s: float) -> Exposition | None:
    """None: it has no metrics of an inference engine that is known.

    Raises ValueError where it has, and is no valid text.
    """
    ours = [line for line in text.splitlines() if _is_wanted(line)]
    try:
        return _read("\n".join(ours) + "\n", time_s)
    except (LookupError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _read(text: str, time_s: float) -> Exposition | None:
    engines: dict[str, _Engine] = defaultdict(_Engine)
    empty: list[tuple[str, str]] = []
    flavour = "vllm"
    started: float | None = None
    families = list(text_string_to_metric_families(text))
    known = {_name(family) for family in families}
    for family in families:
        if family.name == _START:
            started = family.samples[0].value if family.samples else None
            continue
        name = _name(family)
        flavour = "headway" if family.name.startswith("headway:") else flavour
        if _OLDER.get(name) in known:
            continue  # some versions have both
        name = _OLDER.get(name, name)
        if not family.samples:
            empty.append((name, family.type))
        _take(engines, name, family)
    if not engines:
        return None
    for engine in engines.values():
        for name, kind in empty:
            # Counted, and nothing was yet: not the same as not counted.
            if kind == "counter":
                engine.counters.setdefault(name, {})
    return Exposition(
        flavour, {name: engine.sample(time_s, started) for name, engine in engines.items()}
    )


def _is_wanted(line: str) -> bool:
    name = line.split(maxsplit=3)[2:3] if line.startswith("#") else [line]
    return bool(name) and name[0].startswith((*_NAMESPACES, _START))


def _name(family: Metric) -> str:
    name = family.name.partition(":")[2]
    # One without a type is known by its name.
    return name if family.type == "histogram" else name.removesuffix("_total")


def _take(engines: Mapping[str, _Engine], name: str, family: Metric) -> None:
    is_info = name.endswith("_info") or name == "info"
    for sample in family.samples:
        engine = engines[sample.labels.get("engine", "0")]
        if is_info:
            engine.info.update(_own(sample.labels))
        elif not math.isfinite(sample.value):
            continue
        elif family.type == "histogram":
            _take_histogram(engine, name, sample.name, sample.labels, sample.value)
        else:
            counted = family.type == "counter" or sample.name.endswith("_total")
            into = engine.counters if counted else engine.gauges
            labels = frozenset(_own(sample.labels))
            values = into.setdefault(name, {})
            known = values.get(labels, 0.0)
            # Of several models in one engine counts add up, shares of its cache do not.
            value = float(sample.value)
            values[labels] = max(known, value) if name.endswith(_SHARES) else known + value


def _take_histogram(
    engine: _Engine, name: str, series: str, labels: Mapping[str, str], value: float
) -> None:
    if series.endswith("_bucket"):
        at = engine.bounds.setdefault(name, {})
        bound = float(labels.get("le", ""))
        at[bound] = at.get(bound, 0.0) + value
    elif series.endswith("_sum"):
        engine.sums[name] += value


def _own(labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return [(key, value) for key, value in labels.items() if key not in _EVERYWHERE]
