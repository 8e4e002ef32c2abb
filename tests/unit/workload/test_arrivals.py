from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import pytest

from headway.errors import InvalidConfig
from headway.workload import (
    Arrivals,
    AtOnce,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    arrival_times,
)
from headway.workload.arrivals import check_arrivals


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in pairwise([0.0, *times])]


def test_a_poisson_process_has_exponential_gaps_and_exactly_its_rate() -> None:
    times = arrival_times(Poisson(2.0), 20_000, Random(0))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(10_000)
    between = gaps(times)
    assert fmean(between) == pytest.approx(0.5)
    assert pstdev(between) == pytest.approx(0.5, rel=0.03)
    # Of an exponential distribution, exp(-1) lies beyond the mean.
    assert sum(gap > 0.5 for gap in between) / 20_000 == pytest.approx(0.3679, abs=0.02)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_sets_the_spread_of_the_gaps(burstiness: float) -> None:
    between = gaps(arrival_times(Gamma(10.0, burstiness), 20_000, Random(1)))
    assert fmean(between) == pytest.approx(0.1)
    assert pstdev(between) / fmean(between) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_gamma_process_of_burstiness_one_is_poisson() -> None:
    assert arrival_times(Gamma(3.0, 1.0), 9, Random(5)) == arrival_times(Poisson(3.0), 9, Random(5))


def test_others_are_not_random() -> None:
    assert arrival_times(Constant(5.0), 3, Random(0)) == [0.0, 5.0, 10.0]
    assert arrival_times(AtOnce(), 2, Random(0)) == [0.0, 0.0]
    assert arrival_times(ClosedLoop(8), 2, Random(0)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arrivals", "field"),
    [
        (Poisson(0.0), "rate"),
        (Gamma(1.0, -1.0), "burstiness"),
        (Gamma(float("inf"), 1.0), "rate"),
        (Constant(0.0), "interval_s"),
        (ClosedLoop(0), "users"),
    ],
)
def test_what_never_or_always_arrives_is_refused_by_name(arrivals: Arrivals, field: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^x.{field}: must be above 0 and finite"):
        check_arrivals("x", arrivals)
