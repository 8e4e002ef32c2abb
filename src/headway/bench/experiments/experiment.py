"""What an experiment is: a claim, how it is tried, and a judge of what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.bench.page import Page
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant

__all__ = ["Experiment", "Finding", "Verdict"]

Verdict = Literal["shown", "not shown", "unclear"]


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
