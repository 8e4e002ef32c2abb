"""Verdicts on what moved."""

from __future__ import annotations

from random import Random

import pytest

from headway.bench.contrast import FIGURES, Change, Figure, contrasts
from headway.bench.figures import Wanted, figures
from headway.bench.load import Run
from headway.bench.trials import Trial

MORE = Figure("more", "more", "1/s", True)
LESS = Figure("less", "less", "ms", False)


def trial(variant: str, index: int, **result: object) -> Trial:
    return Trial(variant=variant, round=index, seed=index, result=result, details={}, samples=())


def paired(before: list[float | None], after: list[float | None], figure: Figure = MORE) -> Change:
    trials = [trial("a", index, **{figure.key: value}) for index, value in enumerate(before)]
    trials += [trial("b", index, **{figure.key: value}) for index, value in enumerate(after)]
    (change,) = contrasts(trials, "a", figures=[figure])
    return change


def test_the_interval_is_students_over_the_logarithms_of_the_rounds_ratios() -> None:
    change = paired([100, 200, 50], [110, 242, 66.55])  # ratios 1.1, 1.21, 1.331
    assert change.ratio == pytest.approx(1.21)
    # logs: 0.0953 · (1, 2, 3); standard error 0.0953 / √3; t of 2 degrees 4.303
    assert change.low == pytest.approx(1.21 * 1.1 ** (-4.303 / 3**0.5))
    assert change.high == pytest.approx(1.21 * 1.1 ** (4.303 / 3**0.5))
    assert (change.baseline, change.value) == (100, 110)
    assert change.verdict == "noise"


@pytest.mark.parametrize(
    ("factor", "figure", "verdict"),
    [(2.0, MORE, "better"), (0.5, MORE, "worse"), (2.0, LESS, "worse"), (0.5, LESS, "better")],
)
def test_a_clear_change_is_better_or_worse_by_the_figures_direction(
    factor: float, figure: Figure, verdict: str
) -> None:
    before = [10.0, 11.0, 12.0, 13.0]
    after = [value * factor * (1 + index / 100) for index, value in enumerate(before)]
    assert paired(before, after, figure).verdict == verdict


def test_a_machine_that_drifts_between_rounds_hides_nothing() -> None:
    before = [100.0, 50.0, 25.0, 12.0]
    assert paired(before, [value * 1.1 for value in before]).verdict == "better"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, 1], [2, 2]),
        ([1, 1, 0], [2, 2, 2]),
        ([1, 1, 1], [2, 2, None]),
        ([1, 1, 1], [2, 2]),
        ([None] * 3, [None] * 3),
    ],
    ids=["two rounds", "a zero", "a figure missing", "a round missing", "nothing"],
)
def test_without_three_whole_rounds_it_is_unclear(before: list, after: list) -> None:
    change = paired(before, after)
    assert (change.verdict, change.low, change.high) == ("unclear", None, None)


def test_what_is_the_same_in_all_rounds_is_noise() -> None:
    assert paired([3.0] * 5, [3.0] * 5).verdict == "noise"


def noisy(random: Random, ratio: float, noise: float, rounds: int = 5) -> Change:
    before, after = [], []
    for _ in range(rounds):
        level = random.uniform(50, 150)  # of the machine, in this round
        before.append(level * random.lognormvariate(0, noise))
        after.append(ratio * level * random.lognormvariate(0, noise))
    return paired(before, after)


def test_equal_servers_look_different_once_in_twenty() -> None:
    random = Random(7)
    count = 2000
    wrong = sum(noisy(random, 1.0, 0.03).verdict != "noise" for _ in range(count))
    assert wrong / count == pytest.approx(0.05, abs=0.015)  # three standard errors


def test_a_fifth_more_is_found_in_noise_of_three_percent() -> None:
    random = Random(8)
    changes = [noisy(random, 1.2, 0.03) for _ in range(300)]
    assert sum(change.verdict == "better" for change in changes) > 295
    held = sum(change.low <= 1.2 <= change.high for change in changes)
    assert held / len(changes) == pytest.approx(0.95, abs=0.04)


def test_each_variant_and_class_is_beside_the_baselines_in_order() -> None:
    classes = {"short": {"less": 1.0}, "long": {"less": 2.0}}
    trials = [
        trial(name, index, less=5.0, classes=classes)
        for index in range(3)
        for name in ("base", "x", "y")
    ]
    changes = contrasts(trials, "base", figures=[LESS])
    assert [(change.variant, change.class_name, change.value) for change in changes] == [
        ("x", None, 5.0),
        ("x", "short", 1.0),
        ("x", "long", 2.0),
        ("y", None, 5.0),
        ("y", "short", 1.0),
        ("y", "long", 2.0),
    ]


def test_figures_are_those_of_bench_serve() -> None:
    wanted = Wanted(metrics=("ttft", "tpot", "itl", "e2el"), percentiles=(99,))
    assert {figure.key for figure in FIGURES} <= figures([Run(0.0, 1.0, [])], wanted).keys()
