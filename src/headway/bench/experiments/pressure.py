"""What happens when KV memory runs short: width, watermark, and who gives way how."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from headway.bench import plots
from headway.bench.contrast import Figure
from headway.bench.experiments.experiment import Experiment, Finding, load_of, traffic
from headway.bench.experiments.judging import (
    ITL,
    OUTPUT,
    TTFT,
    counter_of,
    figure_of,
    finding,
    holds,
    moves,
    points,
    rises,
    with_figure,
)
from headway.bench.page import Page
from headway.bench.readings import typical
from headway.bench.trials import Trial, Variant
from headway.workload import ClosedLoop

__all__ = ["MAX_NUM_SEQS", "PREEMPTION", "WATERMARK", "mean_running"]

_PREEMPTIONS = "num_preemptions_total"
_RECOMPUTED = "recomputed_tokens_total"
_EVICTIONS = "kv_cache_evictions_total"
_SWAPPED = 'swapped_bytes_total{direction="out"}'
_LOW, _RIGHT, _HIGH = 4, 24, 128


def _width(seqs: int) -> str:
    return f"max_num_seqs={seqs}"


def _judge_width(trials: Sequence[Trial]) -> list[Finding]:
    low, right, high = map(_width, (_LOW, _RIGHT, _HIGH))
    return [
        finding(
            "Too low a max_num_seqs wastes throughput, and requests queue that could run.",
            moves(trials, OUTPUT, "lower", of=low, against=right, least=1.2),
            moves(trials, TTFT, "higher", of=low, against=right, least=1.2),
            otherwise="Four sequences at a time already use all of this machine.",
        ),
        finding(
            "Too high a max_num_seqs for the KV memory brings a storm of preemptions, which "
            "serves no more tokens and makes answers stall.",
            rises(trials, _PREEMPTIONS, of=high, against=right, least=2.0, title="preemptions"),
            holds(trials, OUTPUT, of=right, against=high),
            moves(trials, ITL, "higher", of=high, against=right, least=1.2),
            otherwise="What is preempted here is soon computed again, beside the others.",
        ),
    ]


def _begun(text: str) -> str:
    """As a sentence begins."""
    return f"{text[0].upper()}{text[1:]}"


def _plot_width(trials: Sequence[Trial], page: Page) -> None:
    xs = {_width(seqs): float(seqs) for seqs in (_LOW, _RIGHT, _HIGH)}
    for figure in (OUTPUT, TTFT, ITL):
        page.plot(
            plots.lines(
                {figure.title: points(trials, xs, figure_of(figure))},
                x_label="max_num_seqs",
                y_label=f"{figure.title} ({figure.unit})",
                log_x=True,
            ),
            f"{_begun(figure.title)} against max_num_seqs.",
        )
    page.plot(
        plots.timeline(typical(trials, _width(_HIGH))),
        "The storm: while memory is full, requests are preempted again and again.",
    )


MAX_NUM_SEQS = Experiment(
    name="max-num-seqs",
    title="max_num_seqs: too low, right, too high",
    summary="Sixty-four users, and KV memory of 224 blocks, in which about 29 requests fit at "
    "their full length. Prompts alone take half of that, so without a limit that heeds memory "
    "nearly twice as many are admitted, and then there is no room for their answers.",
    variants=tuple(
        Variant(name=_width(seqs), options=("--max-num-seqs", str(seqs), "--num-kv-blocks", "224"))
        for seqs in (_LOW, _RIGHT, _HIGH)
    ),
    load=load_of(traffic("user", 80, (40, 60), (48, 80), ClosedLoop(64))),
    judge=_judge_width,
    plot=_plot_width,
    round_s=65,
    counters=(_PREEMPTIONS, _RECOMPUTED),
)

_MARKS = (0.0, 0.01, 0.05, 0.1)
_RUNNING = Figure("mean_running", "requests running, mean", "", True)


def _mark(share: float) -> str:
    return f"watermark={share:g}"


def mean_running(trial: Trial) -> float | None:
    """Over the moments at which others waited; None: nobody ever did."""
    found = [each.running for each in trial.samples if each.waiting]
    return mean(found) if found else None


def _judge_watermark(trials: Sequence[Trial]) -> list[Finding]:
    none, most = _mark(_MARKS[0]), _mark(_MARKS[-1])
    return [
        finding(
            "A watermark keeps blocks free for those who run: with a tenth of the blocks there "
            "are fewer preemptions than without any.",
            rises(trials, _PREEMPTIONS, of=none, against=most, title="preemptions"),
            otherwise="Requests grow by more than the watermark keeps free for them.",
        ),
        finding(
            "Fewer cached blocks are evicted too: what is not preempted takes no blocks again.",
            rises(trials, _EVICTIONS, of=none, against=most, least=1.1, title="blocks evicted"),
            otherwise="Most blocks are evicted for new requests, and these are as many.",
        ),
        finding(
            "The price is that fewer run at once.",
            moves(
                with_figure(trials, _RUNNING.key, mean_running),
                _RUNNING,
                "lower",
                of=most,
                against=none,
                least=1.03,
            ),
            otherwise="Those who would run besides are preempted as soon as they are admitted.",
        ),
        finding(
            "It does not lower the throughput by a tenth.",
            holds(trials, OUTPUT, of=most, against=none),
            otherwise="The places that it keeps empty cost more here than preemptions do.",
        ),
    ]


def _plot_watermark(trials: Sequence[Trial], page: Page) -> None:
    xs = {_mark(share): share for share in _MARKS}
    for title, read in (
        ("preemptions", counter_of(_PREEMPTIONS)),
        ("blocks evicted", counter_of(_EVICTIONS)),
        (f"{OUTPUT.title} ({OUTPUT.unit})", figure_of(OUTPUT)),
    ):
        page.plot(
            plots.lines(
                {title: points(trials, xs, read)},
                x_label="watermark (share of the KV blocks)",
                y_label=title,
            ),
            f"{_begun(title)} against the watermark.",
        )


WATERMARK = Experiment(
    name="watermark",
    title="The watermark of the KV blocks",
    summary="Forty-eight users and KV memory for about half of them, with a watermark of 0, 0.01 "
    "(the default), 0.05 and 0.1: new requests are admitted only while so many blocks stay free.",
    variants=tuple(
        Variant(name=_mark(share), options=("--watermark", f"{share:g}", "--num-kv-blocks", "192"))
        for share in _MARKS
    ),
    load=load_of(traffic("user", 80, (40, 80), (32, 96), ClosedLoop(48))),
    judge=_judge_watermark,
    plot=_plot_watermark,
    round_s=75,
    counters=(_PREEMPTIONS, _EVICTIONS, _RECOMPUTED),
)

_RECOMPUTE, _SWAP, _AUTO = "recompute", "swap", "auto"


def _judge_preemption(trials: Sequence[Trial]) -> list[Finding]:
    return [
        finding(
            "Swapping saves the work that preemption throws away, where copying KV is cheaper "
            "than computing it again: more tokens a second are served.",
            rises(
                trials,
                _RECOMPUTED,
                of=_RECOMPUTE,
                against=_SWAP,
                title="tokens computed again",
            ),
            moves(trials, OUTPUT, "higher", of=_SWAP, against=_RECOMPUTE),
            otherwise="The prefix cache still holds much of what is preempted, or there is too "
            "little of it to matter.",
        ),
        finding(
            "auto is as good as the better of the two.",
            holds(trials, OUTPUT, of=_AUTO, against=_SWAP),
            holds(trials, OUTPUT, of=_AUTO, against=_RECOMPUTE),
            otherwise="The costs that it goes by are not those of this load.",
        ),
    ]


def _plot_preemption(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.throughput_latency(trials, latency_key=ITL.key),
        "Throughput, and the longest hundredth of the gaps between tokens.",
    )
    page.plot(plots.latency_cdf(trials, metric="e2el"), "Time to the whole answer.")
    page.plot(plots.timeline(typical(trials, _RECOMPUTE)), "With recomputation, over time.")


PREEMPTION = Experiment(
    name="preemption",
    title="Preemption: recompute, swap, auto",
    summary="Thirty-two users whose prompts fit into KV memory together, and at their full length "
    "about fifteen of them. Who is preempted loses its KV and computes it again (recompute), "
    "or has it copied out and back (swap); auto takes what is measured to cost less.",
    variants=tuple(
        Variant(name=mode, options=("--preemption-mode", mode, "--num-kv-blocks", "256"))
        for mode in (_RECOMPUTE, _SWAP, _AUTO)
    ),
    load=load_of(traffic("user", 48, (80, 120), (128, 192), ClosedLoop(32))),
    judge=_judge_preemption,
    plot=_plot_preemption,
    round_s=70,
    counters=(_PREEMPTIONS, _RECOMPUTED, _SWAPPED),
)
