"""Each experiment: its load and options are valid, and its judge can say both."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import pytest

from headway.bench import plots
from headway.bench.experiments.cache import slots_per_request
from headway.bench.experiments.catalogue import EXPERIMENTS, experiment_named
from headway.bench.experiments.experiment import Experiment, quick
from headway.bench.experiments.prefill import longest_gaps
from headway.bench.experiments.pressure import mean_running
from headway.bench.experiments.queueing import rejections
from headway.bench.experiments.report import make_page
from headway.bench.experiments.saved import GAPS, KEPT, Saved
from headway.bench.experiments.static_policy import StaticBatchingPolicy
from headway.bench.keeping import slim
from headway.bench.readings import hit_rate
from headway.bench.trials import Trial
from headway.cli.options import engine_options, server_settings
from headway.cli.parser import build_parser
from headway.config import EngineArgs
from headway.errors import HeadwayError
from made_trials import made_trials

every_experiment = pytest.mark.parametrize("name", EXPERIMENTS)


@dataclass(frozen=True)
class Made:
    """Trials in which all the claims of an experiment hold."""

    figures: dict[str, dict[str, float]]
    classes: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    failed_after: dict[str, list[float | None]] = field(default_factory=dict)
    held: dict[str, tuple[float, float]] = field(default_factory=dict)

    def trials(self, experiment: Experiment, **options: object) -> list[Trial]:
        return made_trials(
            {each.name: self.figures.get(each.name, {}) for each in experiment.variants},
            counters=self.counters,
            failed_after=self.failed_after,
            held=self.held,
            classes={
                kind.name: self.classes.get(kind.name, {})
                for kind in experiment.load.workload.classes
            },
            **{"noise": 0.01, **options},
        )


TRUE = {
    "batching": Made({"static": {"output_throughput": 0.6, "median_ttft_ms": 4.0}}),
    "chunked-prefill": Made(
        {}, classes={"short": {"off": {"p99.9_itl_ms": 4.0}, "on": {"p90_ttft_ms": 2.0}}}
    ),
    "token-budget": Made(
        {
            "32 tokens": {"output_throughput": 0.6},
            "2048 tokens": {"p99_itl_ms": 5.0},
            "2048 tokens, floods": {"median_ttft_ms": 1.5},
        }
    ),
    "max-num-seqs": Made(
        {
            "max_num_seqs=4": {"output_throughput": 0.5, "median_ttft_ms": 3.0},
            "max_num_seqs=128": {"output_throughput": 0.9, "p99_itl_ms": 3.0},
        },
        counters={
            "max_num_seqs=24": {"num_preemptions_total": 2.0},
            "max_num_seqs=128": {"num_preemptions_total": 80.0},
        },
    ),
    "block-size": Made(
        {"blocks of 16": {"output_throughput": 0.85}}, held={"blocks of 32": (8.0, 0.7)}
    ),
    "prefix-caching": Made(
        {
            "on, 3 prefixes": {"median_ttft_ms": 0.2, "output_throughput": 2.0},
            "on, 16 prefixes, small cache": {"median_ttft_ms": 2.0},
        },
        counters={
            "on, 3 prefixes": {"prefix_cache_hits_total": 9000.0},
            "on, a fifth share": {"prefix_cache_hits_total": 2000.0},
            "on, 16 prefixes, small cache": {"kv_cache_evictions_total": 90.0},
        },
    ),
    "watermark": Made(
        {},
        counters={
            "watermark=0": {"num_preemptions_total": 40.0, "kv_cache_evictions_total": 900.0},
            "watermark=0.1": {"num_preemptions_total": 4.0, "kv_cache_evictions_total": 700.0},
        },
        held={"watermark=0.1": (7.0, 0.5)},
    ),
    "preemption": Made(
        {"recompute": {"output_throughput": 0.8}},
        counters={"recompute": {"recomputed_tokens_total": 5000.0}},
    ),
    "policies": Made({}, classes={"light": {"fcfs": {"median_ttft_ms": 8.0}}}),
    "queue-limit": Made(
        {"no limit": {"p99_ttft_ms": 9.0, "median_ttft_ms": 5.0}},
        failed_after={"limit 16": [None, None, 0.004, 0.006]},
    ),
}


@every_experiment
def test_a_judge_shows_what_is_so(name: str) -> None:
    experiment = EXPERIMENTS[name]
    found = experiment.judge(TRUE[name].trials(experiment))
    assert {finding.verdict for finding in found} == {"shown"}, found


@every_experiment
def test_a_judge_does_not_show_an_effect_where_nothing_differs(name: str) -> None:
    """What only says that something costs nothing holds there."""
    experiment = EXPERIMENTS[name]
    found = experiment.judge(Made({}).trials(experiment))
    denied = [finding for finding in found if finding.verdict == "not shown"]
    assert denied
    shown = [finding.claim for finding in found if finding.verdict == "shown"]
    assert all(
        "no throughput" in each or "nothing" in each or "as good" in each or "not lower" in each
        for each in shown
    ), shown


@every_experiment
def test_a_judge_says_unclear_of_a_single_round(name: str) -> None:
    experiment = EXPERIMENTS[name]
    found = experiment.judge(TRUE[name].trials(experiment, rounds=1))
    assert {finding.verdict for finding in found} == {"unclear"}, found


class Plotted:
    """In the place of `plots`: it draws the same, and nothing may be empty."""

    def __init__(self, experiment: Experiment) -> None:
        self.variants = {variant.name for variant in experiment.variants}
        self.classes = {kind.name for kind in experiment.load.workload.classes}
        self.drawn: list[str] = []

    def latency_cdf(self, trials: Sequence[Trial], **of: Any) -> str:
        variants = {trial.variant for trial in trials}
        assert len(variants & self.variants) >= 2
        assert of.get("class_name") in {None, *self.classes}
        return self._draw(plots.latency_cdf(trials, **of), variants)

    def throughput_latency(self, trials: Sequence[Trial], *, latency_key: str) -> str:
        assert all(trial.result[latency_key] for trial in trials)
        svg = plots.throughput_latency(trials, latency_key=latency_key)
        return self._draw(svg, {trial.variant for trial in trials})

    def timeline(self, trial: Trial) -> str:
        assert trial.variant in self.variants
        return self._draw(plots.timeline(trial), {"running", "waiting"})

    def lines(self, series: Mapping[str, Sequence[tuple[float, float]]], **labels: Any) -> str:
        for points in series.values():
            assert len({x for x, _ in points}) >= 2
        named = {*series, labels["x_label"], labels["y_label"]}
        return self._draw(plots.lines(series, **labels), named)

    def _draw(self, svg: str, named: Set[str]) -> str:
        told = {each.text for each in ElementTree.fromstring(svg).iter() if "text" in each.tag}
        assert named <= told
        self.drawn.append(svg)
        return svg


@every_experiment
def test_its_page_has_its_plots_with_all_variants(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = EXPERIMENTS[name]
    plotted = Plotted(experiment)
    monkeypatch.setattr(sys.modules[experiment.plot.__module__], "plots", plotted)
    kept = (*KEPT, GAPS) if experiment.plots_gaps else KEPT
    saved = Saved(
        experiment=name,
        date="2026-03-04T05:06:07Z",
        machine="a machine",
        version="1",
        rounds=3,
        quick=False,
        trials=[slim(trial, kept) for trial in TRUE[name].trials(experiment)],
    )
    html = make_page(experiment, saved).html()
    assert html.count("<figure>") == len(plotted.drawn) >= 2
    assert all(svg in html for svg in plotted.drawn)


@every_experiment
def test_its_loads_and_options_are_valid(name: str) -> None:
    experiment = EXPERIMENTS[name]
    names = [variant.name for variant in experiment.variants]
    assert len(set(names)) == len(names) >= 2
    for variant in experiment.variants:
        args = build_parser().parse_args(["serve", *variant.options])
        EngineArgs.of(engine_options(args))
        server_settings(args)
        (variant.load or experiment.load).workload.check()


@every_experiment
def test_a_quick_run_sends_a_fifth(name: str) -> None:
    experiment = EXPERIMENTS[name]
    short = quick(experiment)
    for whole, small in zip(experiment.variants, short.variants, strict=True):
        before = (whole.load or experiment.load).workload.classes
        after = (small.load or short.load).workload.classes
        for one, other in zip(before, after, strict=True):
            assert other.num_prompts == max(2, one.num_prompts // 5)


def test_a_name_that_is_none_is_told_those_there_are() -> None:
    with pytest.raises(HeadwayError, match=r"no experiment 'x'; there are batching, .*, and all"):
        experiment_named("x")


def test_what_is_read_from_a_trial() -> None:
    (trial,) = made_trials(
        {"a": {}},
        rounds=1,
        held={"a": (4.0, 0.25)},
        counters={"a": {"prefix_cache_hits_total": 30.0, "prefix_cache_queries_total": 40.0}},
        failed_after={"a": [None, 0.5]},
    )
    assert slots_per_request(trial) == 0.25 * 16_384 / 4
    assert mean_running(trial) == 4
    assert hit_rate(trial) == 0.75
    assert rejections(trial) == [0.5]
    (other,) = made_trials({"a": {}}, rounds=1, held={"a": (0.0, 0.0)})
    assert slots_per_request(other) is None
    assert hit_rate(other) is None


def test_only_what_the_full_queue_refused_is_a_rejection() -> None:
    (trial,) = made_trials({"a": {}}, rounds=1, failed_after={"a": [None, 0.5, 9.0, 0.1]})
    trial.details["errors"][2] = "the connection was closed"
    assert rejections(trial) == [0.5, 0.1]


def test_both_ways_to_batch_have_as_many_places_as_the_static_batch() -> None:
    assert StaticBatchingPolicy()._batch_size == 128
    for variant in EXPERIMENTS["batching"].variants:
        assert variant.options[:2] == ("--max-num-seqs", "128")


def test_the_longest_gaps_are_those_of_the_class() -> None:
    (trial,) = made_trials({"a": {}}, rounds=1, classes={"long": {}, "short": {}})
    found = dict(longest_gaps(trial, "short"))
    assert 20 < found[20.0] <= found[0.1] <= 123.456789
    assert longest_gaps(trial, "none") == []


def test_refusals_that_take_long_are_not_at_once() -> None:
    experiment = EXPERIMENTS["queue-limit"]
    slow = Made(TRUE["queue-limit"].figures, failed_after={"limit 16": [None, 0.4, 0.5]})
    verdicts = [finding.verdict for finding in experiment.judge(slow.trials(experiment))]
    assert verdicts == ["shown", "not shown", "shown"]
