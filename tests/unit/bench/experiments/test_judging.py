"""What judges make of figures: shown, not shown, and unclear, under noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headway.bench.contrast import Figure
from headway.bench.experiments.judging import (
    OUTPUT,
    TTFT,
    Part,
    finding,
    holds,
    moves,
    rises,
)
from headway.bench.readings import typical
from headway.bench.trials import Trial
from made_trials import made_trials

SEEDS = range(100)


def verdicts(ratio: float, noise: float, least: float, rounds: int = 3) -> dict[str, float]:
    """Shares of verdicts about a throughput that is truly `ratio` times the other."""
    found = [
        moves(
            made_trials(
                {"a": {}, "b": {"output_throughput": ratio}}, noise=noise, seed=seed, rounds=rounds
            ),
            OUTPUT,
            "higher",
            of="b",
            against="a",
            least=least,
        ).verdict
        for seed in SEEDS
    ]
    return {each: found.count(each) / len(found) for each in ("shown", "not shown", "unclear")}


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05])
def test_what_did_not_move_is_hardly_ever_shown(noise: float) -> None:
    assert verdicts(1.0, noise, 1.1)["shown"] <= 0.03


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05])
def test_what_moved_much_is_hardly_ever_denied(noise: float) -> None:
    found = verdicts(1.5, noise, 1.1)
    assert found["shown"] >= 0.9
    assert found["not shown"] == 0


def test_what_did_not_move_is_denied_where_noise_is_small() -> None:
    assert verdicts(1.0, 0.02, 1.1)["not shown"] >= 0.8


def test_what_moved_the_other_way_is_denied() -> None:
    assert verdicts(0.7, 0.03, 1.1)["not shown"] >= 0.95


@pytest.mark.parametrize("least", [1.1, 2.0])
def test_much_noise_is_unclear_and_not_denied(least: float) -> None:
    found = verdicts(1.0, 0.3, least)
    assert found["unclear"] >= (0.8 if least < 2 else 0.6)


def measured(ratios: Sequence[float], figure: Figure) -> list[Trial]:
    """One round for each ratio of b to a."""
    trials = made_trials({"a": {}, "b": {}}, rounds=len(ratios), noise=0.0)
    factors = [factor for ratio in ratios for factor in (1.0, ratio)]
    return [
        replace(trial, result={**trial.result, figure.key: 100.0 * factor})
        for trial, factor in zip(trials, factors, strict=True)
    ]


@pytest.mark.parametrize(
    ("ratios", "least", "verdict"),
    [
        ((0.52, 0.74, 1.14), 2.0, "unclear"),  # 0.76 times, 95 %: 0.29 to 2.01
        ((0.74, 0.76, 0.78), 2.0, "not shown"),
        ((0.3, 0.35, 0.4), 2.0, "shown"),
        ((0.3, 0.9, 0.3), 2.0, "unclear"),
        ((0.94, 0.96, 0.98), 1.1, "not shown"),
        ((0.89, 0.96, 1.03), 1.1, "unclear"),
    ],
)
def test_what_the_interval_does_not_exclude_is_not_denied(
    ratios: tuple[float, ...], least: float, verdict: str
) -> None:
    trials = measured(ratios, TTFT)
    assert moves(trials, TTFT, "lower", of="b", against="a", least=least).verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.92, 0.96, 1.01), "unclear"),  # 0.96 times, 95 %: 0.86 to 1.08
        ((0.96, 0.97, 0.98), "shown"),
        ((1.2, 1.3, 1.4), "shown"),
        ((0.85, 0.86, 0.87), "not shown"),
        ((0.6, 0.9, 0.9), "unclear"),
    ],
)
def test_that_something_costs_nothing_needs_an_interval_that_excludes_it(
    ratios: tuple[float, ...], verdict: str
) -> None:
    trials = measured(ratios, OUTPUT)
    assert holds(trials, OUTPUT, of="b", against="a").verdict == verdict


def test_a_single_round_shows_nothing() -> None:
    assert verdicts(2.0, 0.0, 1.1, rounds=1)["unclear"] == 1


def test_lower_is_the_mirror_of_higher() -> None:
    trials = made_trials({"a": {}, "b": {"median_ttft_ms": 0.5}})
    down = moves(trials, TTFT, "lower", of="b", against="a", least=1.5)
    up = moves(trials, TTFT, "higher", of="a", against="b", least=1.5)
    assert down.verdict == up.verdict == "shown"
    assert moves(trials, TTFT, "higher", of="b", against="a").verdict == "not shown"


def test_a_class_is_judged_by_its_own_figures() -> None:
    trials = made_trials(
        {"a": {}, "b": {}}, classes={"light": {"b": {"median_ttft_ms": 0.5}}, "heavy": {}}
    )
    part = moves(trials, TTFT, "lower", of="b", against="a", class_name="light")
    assert part.verdict == "shown"
    assert "light" in part.evidence
    for other, verdict in (("x", "unclear"), ("heavy", "not shown"), (None, "not shown")):
        part = moves(trials, TTFT, "lower", of="b", against="a", least=1.5, class_name=other)
        assert part.verdict == verdict, other


def test_no_loss_is_a_loss_that_is_excluded() -> None:
    equal = made_trials({"a": {}, "b": {}}, noise=0.01)
    assert holds(equal, OUTPUT, of="b", against="a").verdict == "shown"
    worse = made_trials({"a": {}, "b": {"output_throughput": 0.7}}, noise=0.01)
    assert holds(worse, OUTPUT, of="b", against="a").verdict == "not shown"
    better = made_trials({"a": {}, "b": {"output_throughput": 1.5}}, noise=0.01)
    assert holds(better, OUTPUT, of="b", against="a").verdict == "shown"
    slower = made_trials({"a": {}, "b": {"median_ttft_ms": 2.0}}, noise=0.01)
    assert holds(slower, TTFT, of="b", against="a").verdict == "not shown"


@pytest.mark.parametrize(
    ("high", "low", "rounds", "verdict"),
    [
        (20.0, 0.0, 3, "shown"),
        (20.0, 10.0, 3, "shown"),
        (20.0, 19.0, 3, "not shown"),
        (0.0, 0.0, 3, "not shown"),
        (0.0, 20.0, 3, "not shown"),
        (20.0, 0.0, 2, "unclear"),
    ],
)
def test_counters(high: float, low: float, rounds: int, verdict: str) -> None:
    trials = made_trials(
        {"a": {}, "b": {}}, rounds=rounds, counters={"a": {"n_total": low}, "b": {"n_total": high}}
    )
    part = rises(trials, "n_total", of="b", against="a", title="things")
    assert part.verdict == verdict
    assert part.evidence.startswith("things: b ")


def test_counters_that_differ_in_most_rounds_alone_are_unclear() -> None:
    trials = made_trials({"a": {}, "b": {}}, counters={"a": {"n": 10.0}, "b": {"n": 20.0}})
    trials[1] = made_trials({"b": {}}, counters={"b": {"n": 9.0}})[0]
    assert rises(trials, "n", of="b", against="a", title="things").verdict == "unclear"


def test_counters_that_differ_enough_are_so_though_a_round_falls_short() -> None:
    trials = made_trials(
        {"a": {}, "b": {}}, rounds=8, counters={"a": {"n": 10.0}, "b": {"n": 13.0}}
    )
    fallen = next(i for i, trial in enumerate(trials) if trial.variant == "b")
    trials[fallen] = made_trials({"b": {}}, counters={"b": {"n": 11.0}})[0]
    part = rises(trials, "n", of="b", against="a", title="things")
    assert (part.verdict, part.evidence[:26]) == ("shown", "things: b 13, a 10 (1.27 t")


def test_a_finding_is_as_good_as_its_worst_part() -> None:
    shown, not_shown = Part("shown", "this"), Part("not shown", "that")
    unclear = Part("unclear", "neither")
    assert finding("It is so.", shown, shown, otherwise="Why.").verdict == "shown"
    assert finding("It is so.", shown, unclear, otherwise="Why.").verdict == "unclear"
    found = finding("It is so.", shown, unclear, not_shown, otherwise="Why.")
    assert found.verdict == "not shown"
    assert found.evidence == "this; neither; that. Why."
    assert "Why" not in finding("It is so.", shown, otherwise="Why.").evidence


def test_the_typical_trial_is_the_middle_one() -> None:
    trials = made_trials({"a": {}, "b": {}}, rounds=5, noise=0.2)
    own = sorted(t.result["output_throughput"] for t in trials if t.variant == "b")
    assert typical(trials, "b").result["output_throughput"] == own[2]
