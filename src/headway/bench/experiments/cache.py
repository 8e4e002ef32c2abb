"""The KV cache: the size of its blocks, and prefixes that are found in it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from headway.bench import plots
from headway.bench.contrast import Figure
from headway.bench.experiments.experiment import Experiment, Finding, load_of, traffic
from headway.bench.experiments.judging import (
    OUTPUT,
    TTFT,
    figure_of,
    finding,
    holds,
    moves,
    points,
    rises,
    with_figure,
)
from headway.bench.page import Page
from headway.bench.readings import hit_rate, typical
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant
from headway.workload import ClosedLoop, SharedPrefix

__all__ = ["BLOCK_SIZE", "PREFIX_CACHING", "slots_per_request"]

_SLOTS = 16_384
_SIZES = (16, 32)
_HELD = Figure("kv_slots_per_request", "KV slots held by a running request", "tokens", False)


def _size(tokens: int) -> str:
    return f"blocks of {tokens}"


def slots_per_request(trial: Trial) -> float | None:
    """Mean over the moments at which any request ran; None: there was none."""
    found = [each.kv_usage * _SLOTS / each.running for each in trial.samples if each.running]
    return mean(found) if found else None


def _judge_blocks(trials: Sequence[Trial]) -> list[Finding]:
    small, large = map(_size, _SIZES)
    return [
        finding(
            "Larger blocks waste more memory: of a request's last block half is empty on average.",
            moves(
                with_figure(trials, _HELD.key, slots_per_request),
                _HELD,
                "higher",
                of=large,
                against=small,
            ),
            otherwise="The requests are so long that their last blocks do not count.",
        ),
        finding(
            "Smaller blocks cost throughput, because there are more of them to keep account of.",
            moves(trials, OUTPUT, "lower", of=small, against=large),
            otherwise="What the scheduler and the attention do for each block is small beside "
            "a step of the model on this machine.",
        ),
    ]


def _plot_blocks(trials: Sequence[Trial], page: Page) -> None:
    xs = {_size(tokens): float(tokens) for tokens in _SIZES}
    page.plot(
        plots.lines(
            {"held": points(trials, xs, slots_per_request)},
            x_label="block size (tokens)",
            y_label=f"{_HELD.title} ({_HELD.unit})",
        ),
        "Memory that a running request holds, on average over the run.",
    )
    page.plot(
        plots.lines(
            {OUTPUT.title: points(trials, xs, figure_of(OUTPUT))},
            x_label="block size (tokens)",
            y_label=f"{OUTPUT.title} ({OUTPUT.unit})",
        ),
        "Throughput.",
    )


BLOCK_SIZE = Experiment(
    name="block-size",
    title="Blocks of 16 and of 32 tokens",
    summary="Forty-eight users with short prompts and short answers, and the same KV memory "
    "(16,384 tokens) in blocks of 16 and of 32 tokens.",
    variants=tuple(
        Variant(
            name=_size(tokens),
            options=("--block-size", str(tokens), "--num-kv-blocks", str(_SLOTS // tokens)),
        )
        for tokens in _SIZES
    ),
    load=load_of(traffic("user", 240, (8, 40), (8, 40), ClosedLoop(48))),
    judge=_judge_blocks,
    plot=_plot_blocks,
    round_s=40,
)

_PROMPT, _PREFIX = 448, 400
_SMALL_CACHE = 160


def _shared(num_prompts: int, prefix: SharedPrefix | None) -> Load:
    return load_of(
        traffic(
            "user",
            num_prompts,
            _PROMPT,
            16,
            ClosedLoop(4),
            shared_prefix=prefix,
        )
    )


_FEW_PREFIXES = _shared(28, SharedPrefix(_PREFIX, count=3))
_SELDOM = _shared(28, SharedPrefix(_PREFIX, share=0.2))
_MANY_PREFIXES = _shared(34, SharedPrefix(_PREFIX, count=16))
_NO_PREFIX = _shared(16, None)
_OFF_OPTION = ("--no-enable-prefix-caching",)
_OFF, _ON = "off, 3 prefixes", "on, 3 prefixes"
_ON_SELDOM = "on, a fifth share"
_OFF_NONE, _ON_NONE = "off, no prefix", "on, no prefix"
_LARGE, _SMALL = "on, 16 prefixes", "on, 16 prefixes, small cache"
_HITS, _QUERIES = "prefix_cache_hits_total", "prefix_cache_queries_total"
_EVICTIONS = "kv_cache_evictions_total"


def _judge_prefixes(trials: Sequence[Trial]) -> list[Finding]:
    return [
        finding(
            "Where prompts share their beginning, prefix caching halves the time to the first "
            "token, or better, and raises throughput.",
            moves(trials, TTFT, "lower", of=_ON, against=_OFF, least=2.0),
            moves(trials, OUTPUT, "higher", of=_ON, against=_OFF),
            otherwise="The shared beginning is too small a part of the work here.",
        ),
        finding(
            "The gain goes with the hit rate: where one prompt in five has the shared beginning, "
            "few tokens are found, and the first token comes not nearly as soon.",
            rises(trials, _HITS, of=_ON, against=_ON_SELDOM, least=2.0, title="tokens found"),
            moves(trials, TTFT, "higher", of=_ON_SELDOM, against=_ON, least=2.0),
            otherwise="The few hits make room enough for all the others.",
        ),
        finding(
            "Where prompts share nothing, prefix caching costs nothing that can be felt.",
            holds(trials, OUTPUT, of=_ON_NONE, against=_OFF_NONE),
            holds(trials, TTFT, of=_ON_NONE, against=_OFF_NONE),
            otherwise="Hashing prompts and keeping blocks takes a part of a step here.",
        ),
        finding(
            "A cache smaller than the prefixes in use evicts them before they are asked for "
            "again, and the first token comes later.",
            rises(trials, _EVICTIONS, of=_SMALL, against=_LARGE, title="blocks evicted"),
            moves(trials, TTFT, "higher", of=_SMALL, against=_LARGE),
            otherwise="What is evicted here is seldom asked for again.",
        ),
    ]


def _plot_prefixes(trials: Sequence[Trial], page: Page) -> None:
    page.plot(
        plots.latency_cdf(trials, metric="ttft"),
        "Time to the first token: a hit takes it near to nothing, a miss to that of the whole "
        "prompt.",
    )
    rows = []
    for variant in dict.fromkeys(trial.variant for trial in trials):
        trial = typical(trials, variant)
        rate = hit_rate(trial)
        rows.append([variant, "–" if rate is None else f"{rate:.0%}"])
    page.heading("Hit rates")
    page.table(["variant", "looked-up tokens found"], rows)
    page.plot(
        plots.timeline(typical(trials, _SMALL)),
        "The small cache over time: what requests hold of it is not there for prefixes.",
    )


PREFIX_CACHING = Experiment(
    name="prefix-caching",
    title="Prefix caching: hits, misses and evictions",
    summary="Four users with prompts of 448 tokens, of which 400 are one of 3 prefixes, one of 16, "
    "the same in a fifth of the prompts, or shared with nobody. The small cache has 160 blocks, "
    "the 16 prefixes are 400 blocks; all other variants have room for everything.",
    variants=(
        Variant(name=_OFF, options=_OFF_OPTION, load=_FEW_PREFIXES),
        Variant(name=_ON, load=_FEW_PREFIXES),
        Variant(name=_ON_SELDOM, load=_SELDOM),
        Variant(name=_OFF_NONE, options=_OFF_OPTION, load=_NO_PREFIX),
        Variant(name=_ON_NONE, load=_NO_PREFIX),
        Variant(name=_LARGE, load=_MANY_PREFIXES),
        Variant(name=_SMALL, options=("--num-kv-blocks", str(_SMALL_CACHE)), load=_MANY_PREFIXES),
    ),
    load=_FEW_PREFIXES,
    judge=_judge_prefixes,
    plot=_plot_prefixes,
    round_s=90,
    counters=(_QUERIES, _HITS, _EVICTIONS),
)
