"""Static against continuous batching, with a hundred users."""

from __future__ import annotations

from collections.abc import Sequence

from headway.bench import plots
from headway.bench.experiments.experiment import Experiment, Finding, load_of, traffic
from headway.bench.experiments.judging import OUTPUT, TTFT, finding, moves
from headway.bench.page import Page
from headway.bench.readings import typical
from headway.bench.trials import Trial, Variant
from headway.workload import ClosedLoop, LogNormal

__all__ = ["BATCHING"]

_STATIC, _CONTINUOUS = "static", "continuous"
_POLICY = "headway.bench.experiments.static_policy:StaticBatchingPolicy"
_PLACES = ("--max-num-seqs", "128")
"""As many as the policy's batch has: with fewer, or more, it would not be static."""


def _judge(trials: Sequence[Trial]) -> list[Finding]:
    return [
        finding(
            "Continuous batching serves more tokens a second than static batching.",
            moves(trials, OUTPUT, "higher", of=_CONTINUOUS, against=_STATIC),
            otherwise="The answers are of so equal length here, or a step costs so much more "
            "with each request in it, that places left empty cost little.",
        ),
        finding(
            "With continuous batching nobody waits for the longest answer of a batch: the first "
            "token comes at least twice as soon.",
            moves(trials, TTFT, "lower", of=_CONTINUOUS, against=_STATIC, least=2.0),
            otherwise="The wait for a place is short beside the prompt's own computation here.",
        ),
    ]


def _plot(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.latency_cdf(trials, metric="ttft"),
        "Time to the first token: under static batching a request waits for a whole batch to end.",
    )
    for variant in (_STATIC, _CONTINUOUS):
        page.plot(
            plots.timeline(typical(trials, variant)),
            f"Requests over time, {variant} batching: "
            + (
                "each batch thins out before the next begins."
                if variant == _STATIC
                else "a place that comes free is taken at once."
            ),
        )


BATCHING = Experiment(
    name="batching",
    title="Static against continuous batching",
    summary="A hundred users each send a request, wait for the answer and send the next. Answers "
    "differ much in length. Static batching is a policy that admits all who wait when nothing "
    "runs, and nobody else until they have all ended; continuous batching lets somebody in "
    "whenever a place is free.",
    variants=(
        Variant(name=_STATIC, options=(*_PLACES, "--scheduling-policy", _POLICY)),
        Variant(name=_CONTINUOUS, options=_PLACES),
    ),
    load=load_of(
        traffic(
            "user",
            400,
            (8, 24),
            LogNormal(median=12, sigma=1.3, high=240, low=2),
            ClosedLoop(100),
        )
    ),
    judge=_judge,
    plot=_plot,
    round_s=60,
)
