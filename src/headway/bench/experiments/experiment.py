"""What an experiment is: a claim, how it is tried, and a judge of what came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from headway.bench.figures import Wanted
from headway.bench.page import Page
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant
from headway.workload import Arrivals, Length, SharedPrefix, TrafficClass, Workload

__all__ = ["Experiment", "Finding", "Verdict", "load_of", "quick", "traffic"]

Verdict = Literal["shown", "not shown", "unclear"]

_QUICK_SHARE = 5
_LEAST_PROMPTS = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim beside what was measured."""

    claim: str
    """As the guide makes it, one sentence."""
    verdict: Verdict
    evidence: str
    """The figures it rests on; for what is not shown also why not, on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Run by `headway experiment NAME`: `run_trials(variants, load, …)`, then `judge`, then a page
    with the findings, the figures of all variants, and what `plot` adds."""

    name: str
    """On the command line: `token-budget`."""
    title: str
    summary: str
    """What is tried and why, a paragraph."""
    variants: tuple[Variant, ...]
    load: Load
    judge: Callable[[Sequence[Trial]], list[Finding]]
    plot: Callable[[Sequence[Trial], Page], None]
    round_s: float
    """What a round takes about, in seconds, with the default model on two cores: all variants,
    their servers' starts included."""
    counters: tuple[str, ...] = ()
    """Those of `Trial.counters` that the page shows."""
    plots_gaps: bool = False
    """`plot` needs `itls`, the gaps between all tokens, which are most of what is measured."""


def traffic(
    name: str,
    num_prompts: int,
    input_len: Length,
    output_len: Length,
    arrivals: Arrivals,
    *,
    shared_prefix: SharedPrefix | None = None,
    body: Mapping[str, Any] | None = None,
) -> TrafficClass:
    """A class of requests."""
    return TrafficClass(
        name=name,
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        arrivals=arrivals,
        shared_prefix=shared_prefix,
        body=dict(body or {}),
    )


def load_of(*classes: TrafficClass) -> Load:
    """Token prompts, sent once, with all the figures that a judge may ask for."""
    return Load(
        workload=Workload(classes=classes),
        seeds=(0,),
        text=False,
        wanted=Wanted(metrics=("ttft", "tpot", "itl", "e2el"), percentiles=(90.0, 99.0, 99.9)),
    )


def quick(experiment: Experiment) -> Experiment:
    """The same with a fifth of the requests: to see that all of it runs."""
    variants = (
        each if each.load is None else replace(each, load=_fewer(each.load))
        for each in experiment.variants
    )
    return replace(
        experiment,
        variants=tuple(variants),
        load=_fewer(experiment.load),
        round_s=experiment.round_s / 2,
    )


def _fewer(load: Load) -> Load:
    classes = tuple(
        msgspec.structs.replace(
            each, num_prompts=max(_LEAST_PROMPTS, each.num_prompts // _QUICK_SHARE)
        )
        for each in load.workload.classes
    )
    return replace(load, workload=msgspec.structs.replace(load.workload, classes=classes))
