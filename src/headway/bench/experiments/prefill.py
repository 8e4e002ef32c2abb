"""How much of a step a prompt may take: chunked prefill, its threshold, and the token budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.bench import plots
from headway.bench.experiments.experiment import Experiment, Finding, load_of, traffic
from headway.bench.experiments.judging import (
    ITL,
    ITL_LONGEST,
    OUTPUT,
    TTFT,
    TTFT_P90,
    figure_of,
    finding,
    moves,
    points,
)
from headway.bench.page import Page
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant
from headway.workload import ClosedLoop, Constant, OnOff, Poisson

__all__ = ["CHUNKED_PREFILL", "TOKEN_BUDGET", "longest_gaps"]

_OFF, _ON, _THRESHOLD = "off", "on", "on, threshold 64"
_SHORT = "short"


_SHARES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


def longest_gaps(trial: Trial, class_name: str) -> list[tuple[float, float]]:
    """Of the gaps between tokens of a class: percent of them that are longer, and milliseconds."""
    details = trial.details
    gaps = [
        gap * 1e3
        for name, found in zip(details["class_names"], details["itls"], strict=True)
        if name == class_name
        for gap in found
    ]
    return [(share, float(np.percentile(gaps, 100 - share))) for share in _SHARES] if gaps else []


def _judge_chunks(trials: Sequence[Trial]) -> list[Finding]:
    return [
        finding(
            "Chunked prefill bounds how long a long prompt holds up the answers beside it.",
            moves(trials, ITL_LONGEST, "lower", of=_ON, against=_OFF, least=1.5, class_name=_SHORT),
            otherwise="A whole prompt is computed here about as fast as a step's budget of it.",
        ),
        finding(
            "A threshold for long prompts lets short requests reach their first token sooner "
            "beside them.",
            moves(
                trials,
                TTFT_P90,
                "lower",
                of=_THRESHOLD,
                against=_ON,
                least=1.2,
                class_name=_SHORT,
            ),
            otherwise="Either few short requests meet a long prompt, or smaller chunks make the "
            "long prompts last so much longer on this machine that more of them do.",
        ),
    ]


def _plot_chunks(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.lines(
            {
                variant: [
                    point
                    for trial in trials
                    if trial.variant == variant
                    for point in longest_gaps(trial, _SHORT)
                ]
                for variant in (_OFF, _ON, _THRESHOLD)
            },
            x_label="share of the gaps that are longer (%)",
            y_label="ITL (ms)",
            log_x=True,
            log_y=True,
        ),
        "The long gaps between the tokens of short requests: without chunked prefill the longest "
        "are stalls by whole prompts.",
    )
    page.plot(
        plots.latency_cdf(trials, metric="ttft", class_name=_SHORT),
        "Time to the first token of short requests.",
    )
    page.plot(
        plots.latency_cdf(trials, metric="ttft", class_name="long"),
        "Time to the first token of long requests: what the threshold costs them.",
    )


CHUNKED_PREFILL = Experiment(
    name="chunked-prefill",
    title="Chunked prefill, and the threshold for long prompts",
    summary="Short requests come at random, and every two and a half seconds one with a prompt of "
    "1,200 tokens. Without chunked prefill such a prompt is computed in one step, and all who are "
    "being answered wait for it; with it, a step takes what the token budget leaves. "
    "--long-prefill-token-threshold 64 leaves room in these steps for the prompts of others.",
    variants=(
        Variant(name=_OFF, options=("--max-model-len", "2048", "--no-enable-chunked-prefill")),
        Variant(name=_ON, options=("--max-model-len", "2048")),
        Variant(
            name=_THRESHOLD,
            options=("--max-model-len", "2048", "--long-prefill-token-threshold", "64"),
        ),
    ),
    load=load_of(
        traffic(_SHORT, 48, 48, 32, Poisson(3.0)),
        traffic("long", 6, 1200, 8, Constant(2.5)),
    ),
    judge=_judge_chunks,
    plots_gaps=True,
    plot=_plot_chunks,
    round_s=70,
)

_LOW, _RIGHT, _HIGH = 32, 256, 2048


def _budget(tokens: int, *, floods: bool = False) -> str:
    return f"{tokens} tokens, floods" if floods else f"{tokens} tokens"


def _judge_budget(trials: Sequence[Trial]) -> list[Finding]:
    low, right, high = map(_budget, (_LOW, _RIGHT, _HIGH))
    slow = "A step of 2,048 tokens is not long enough on this machine to be felt."
    return [
        finding(
            "Too high a token budget raises the time to the first token of requests that come "
            "together: what is computed in one step is ready only when all of it is.",
            moves(
                trials,
                TTFT,
                "higher",
                of=_budget(_HIGH, floods=True),
                against=_budget(_RIGHT, floods=True),
            ),
            otherwise=slow,
        ),
        finding(
            "Too high a token budget makes answers stall: a step is as long as its prompts.",
            moves(trials, ITL, "higher", of=high, against=right, least=1.5),
            otherwise=slow,
        ),
        finding(
            "Too low a token budget costs throughput.",
            moves(trials, OUTPUT, "lower", of=low, against=right),
            otherwise="Products of 32 rows are as efficient on this machine as larger ones.",
        ),
    ]


def _plot_budget(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.latency_cdf([each for each in trials if each.variant.endswith("floods")]),
        "Time to the first token under floods: with a large budget the first of a flood wait for "
        "its last.",
    )
    xs = {_budget(tokens): float(tokens) for tokens in (_LOW, _RIGHT, _HIGH)}
    for figure, caption in (
        (ITL, "The longest hundredth of the gaps between tokens, against the token budget."),
        (OUTPUT, "Throughput against the budget."),
        (TTFT, "Time to the first token of the sixteen users, against the budget."),
    ):
        page.plot(
            plots.lines(
                {figure.title: points(trials, xs, figure_of(figure))},
                x_label="max_num_batched_tokens",
                y_label=f"{figure.title} ({figure.unit})",
                log_x=True,
            ),
            caption,
        )


def _budget_variant(tokens: int, load: Load | None = None) -> Variant:
    return Variant(
        name=_budget(tokens, floods=load is not None),
        options=("--max-num-batched-tokens", str(tokens), "--max-num-seqs", "32"),
        load=load,
    )


_FLOODS = load_of(
    traffic("user", 30, (350, 450), 8, OnOff(rate_on=50.0, on_s=0.1, off_s=2.4)),
)

TOKEN_BUDGET = Experiment(
    name="token-budget",
    title="The token budget of a step",
    summary="Sixteen users with prompts of 200 to 600 tokens, under budgets "
    "(--max-num-batched-tokens) of 32, 256 (the default on a CPU) and 2,048 tokens; and with "
    "the two larger ones floods of about five prompts of 400 tokens, every two and a half seconds.",
    variants=(
        *(_budget_variant(tokens) for tokens in (_LOW, _RIGHT, _HIGH)),
        *(_budget_variant(tokens, _FLOODS) for tokens in (_RIGHT, _HIGH)),
    ),
    load=load_of(traffic("user", 32, (200, 600), (16, 48), ClosedLoop(16))),
    judge=_judge_budget,
    plot=_plot_budget,
    round_s=95,
)
