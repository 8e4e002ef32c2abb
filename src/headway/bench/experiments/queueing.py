"""Who waits when more comes than can be served: policies, and a limit of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from headway.bench import plots
from headway.bench.experiments.experiment import Experiment, Finding, load_of, traffic
from headway.bench.experiments.judging import (
    ENOUGH_ROUNDS,
    OUTPUT,
    TTFT,
    TTFT_P99,
    Part,
    finding,
    holds,
    moves,
)
from headway.bench.page import Page
from headway.bench.readings import typical
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant
from headway.workload import AtOnce, Constant, Poisson

__all__ = ["POLICIES", "QUEUE_LIMIT", "rejections"]

_FCFS, _PRIORITY, _FAIR = "fcfs", "priority", "fair"
_HEAVY, _LIGHT = "heavy", "light"


def _tenants(*, priorities: bool) -> Load:
    """Priorities are refused by a policy that does not heed them."""
    urgent = {"priority": 0} if priorities else {}
    patient = {"priority": 10} if priorities else {}
    return load_of(
        traffic(_HEAVY, 60, (96, 160), (32, 64), AtOnce(), body={"user": _HEAVY, **patient}),
        traffic(_LIGHT, 12, 64, 16, Constant(1.0), body={"user": _LIGHT, **urgent}),
    )


def _judge_policies(trials: Sequence[Trial]) -> list[Finding]:
    found = []
    for policy, claim in (
        (_FAIR, "Under fair a tenant that asks for little does not wait behind one that floods."),
        (_PRIORITY, "Under priority urgent requests do not wait behind a flood of others."),
    ):
        found.append(
            finding(
                claim,
                moves(
                    trials,
                    TTFT,
                    "lower",
                    of=policy,
                    against=_FCFS,
                    least=2.0,
                    class_name=_LIGHT,
                ),
                otherwise="The queue is too short here for its order to matter.",
            )
        )
    found.append(
        finding(
            "Who goes first costs no throughput.",
            *(holds(trials, OUTPUT, of=policy, against=_FCFS) for policy in (_FAIR, _PRIORITY)),
            otherwise="Requests that give up their place to others are computed again.",
        )
    )
    return found


def _plot_policies(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.latency_cdf(trials, metric="ttft", class_name=_LIGHT),
        "Time to the first token of the light tenant.",
    )
    page.plot(
        plots.latency_cdf(trials, metric="ttft", class_name=_HEAVY),
        "The same of the heavy tenant: what the other's turn costs it.",
    )


POLICIES = Experiment(
    name="policies",
    title="fcfs, priority and fair",
    summary="A heavy tenant sends sixty requests at once, a light one a request each second; eight "
    "run at a time. Under priority the light tenant's requests have priority 0 and the others "
    "10; under fair the tenants are told apart by user.",
    variants=tuple(
        Variant(
            name=policy,
            options=("--scheduling-policy", policy, "--max-num-seqs", "8"),
            load=_tenants(priorities=policy == _PRIORITY),
        )
        for policy in (_FCFS, _PRIORITY, _FAIR)
    ),
    load=_tenants(priorities=False),
    judge=_judge_policies,
    plot=_plot_policies,
    round_s=60,
    counters=("num_preemptions_total",),
)

_OPEN, _LIMITED = "no limit", "limit 16"
_FAST_SHARE = 0.1


def rejections(trial: Trial) -> list[float]:
    """Seconds that each request which the full queue refused waited for that; others that failed
    are none."""
    pairs = zip(trial.details["failed_after"], trial.details["errors"], strict=True)
    return [after for after, error in pairs if after is not None and error.startswith("HTTP 429")]


def _refused_fast(trials: Sequence[Trial]) -> Part:
    """The median refusal takes less than a tenth of the median wait for a first token without a
    limit."""
    refused = [rejections(trial) for trial in trials if trial.variant == _LIMITED]
    waits = [trial.result[TTFT.key] for trial in trials if trial.variant == _OPEN]
    each = [median(seconds) * 1e3 for seconds in refused if seconds]
    known = [wait for wait in waits if wait is not None]
    if min(len(refused), len(known)) < ENOUGH_ROUNDS:
        return Part("unclear", "too few rounds")
    if not each:
        return Part("not shown", "nothing was refused")
    share = sum(map(len, refused)) / sum(
        len(trial.details["failed_after"]) for trial in trials if trial.variant == _LIMITED
    )
    evidence = (
        f"{share:.0%} of the requests were refused, after {median(each):.0f} ms in the middle; "
        f"without a limit the first token came after {median(known):,.0f} ms in the middle"
    )
    return Part("shown" if max(each) < _FAST_SHARE * min(known) else "not shown", evidence)


def _judge_limit(trials: Sequence[Trial]) -> list[Finding]:
    return [
        finding(
            "Under a flood a limited queue bounds the time to the first token of those who are "
            "accepted.",
            moves(trials, TTFT_P99, "lower", of=_LIMITED, against=_OPEN, least=2.0),
            otherwise="The flood is no more than this machine serves.",
        ),
        finding(
            "Those who are refused learn it at once, and not after a long wait.",
            _refused_fast(trials),
            otherwise="The server is too busy to refuse at once, or had nothing to refuse.",
        ),
        finding(
            "The limit costs no throughput: what is refused could not have been served sooner.",
            holds(trials, OUTPUT, of=_LIMITED, against=_OPEN),
            otherwise="The queue runs empty between arrivals: it is too short a limit.",
        ),
    ]


def _plot_limit(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.latency_cdf(trials, metric="ttft"),
        "Time to the first token of those who were accepted.",
    )
    for variant, caption in (
        (_OPEN, "Without a limit the queue grows for as long as the flood lasts."),
        (_LIMITED, "With a limit of 16 it does not."),
    ):
        page.plot(plots.timeline(typical(trials, variant)), caption)


QUEUE_LIMIT = Experiment(
    name="queue-limit",
    title="A limit of the queue, under a flood",
    summary="About twice as many requests as can be served, for eight seconds, with "
    "--max-num-queued-reqs 16 and without. What is refused gets a 429 that says when to come "
    "again.",
    variants=(
        Variant(name=_OPEN, options=("--max-num-seqs", "32")),
        Variant(name=_LIMITED, options=("--max-num-seqs", "32", "--max-num-queued-reqs", "16")),
    ),
    load=load_of(traffic("flood", 240, (48, 80), (24, 40), Poisson(30.0))),
    judge=_judge_limit,
    plot=_plot_limit,
    round_s=48,
)
