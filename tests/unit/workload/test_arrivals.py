from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidConfig
from headway.workload import (
    Arrivals,
    AtOnce,
    ClosedLoop,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    Ramp,
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


RATES = st.floats(0.2, 50)


def rate_of(ramp: Ramp, duration_s: float, at_s: float) -> float:
    done = min(1.0, at_s / duration_s)
    if ramp.shape == "linear":
        return ramp.rate_from + (ramp.rate_to - ramp.rate_from) * done
    return ramp.rate_from * (ramp.rate_to / ramp.rate_from) ** done


@settings(deadline=None, max_examples=50)
@given(
    RATES,
    RATES,
    st.sampled_from(["linear", "exponential"]),
    st.none() | st.floats(1, 20),
    st.integers(2, 40),
)
def test_a_ramp_is_a_poisson_process_whose_rate_goes_with_time(
    start: float, end: float, shape: str, duration_s: float | None, count: int
) -> None:
    ramp = Ramp(rate_from=start, rate_to=end, shape=shape, duration_s=duration_s)
    times = arrival_times(ramp, count, Random(0))
    assert times == sorted(times)
    # Between two arrivals as many are due, by the rate's integral, as on a clock of rate 1.
    whole = duration_s or times[-1]
    due = arrival_times(Poisson(1.0), count, Random(0))
    for (a, b), expected in zip(pairwise([0.0, *times]), gaps(due), strict=True):
        cuts = [a, min(max(a, whole), b), b]
        found = sum(
            (y - x) / 200 * sum(rate_of(ramp, whole, x + (y - x) * (i + 0.5) / 200)
                                for i in range(200))
            for x, y in pairwise(cuts)
        )  # fmt: skip
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_ramp_over_all_requests_ends_at_its_rate() -> None:
    times = arrival_times(Ramp(rate_from=2, rate_to=20), 110, Random(0))
    assert times[-1] == pytest.approx(10)
    exponential = arrival_times(
        Ramp(rate_from=1, rate_to=math.e, shape="exponential"), 172, Random(0)
    )
    assert exponential[-1] == pytest.approx(172 / (math.e - 1))


@settings(deadline=None, max_examples=50)
@given(st.floats(2, 40), st.floats(0.5, 5), st.floats(0, 2), st.floats(0.5, 5), st.integers(0, 9))
def test_floods_have_their_rates_within_their_windows(
    on: float, on_s: float, off: float, off_s: float, seed: int
) -> None:
    floods = OnOff(rate_on=on, on_s=on_s, rate_off=off, off_s=off_s)
    times = arrival_times(floods, 300, Random(seed))
    assert times == sorted(times)
    period = on_s + off_s
    in_on = [time for time in times if (time + 1e-6) % period <= on_s + 2e-6]
    periods = times[-1] / period
    assert pytest.approx(periods * (on * on_s + off * off_s), abs=on * on_s + off * off_s) == 300
    expected = 300 * on * on_s / (on * on_s + off * off_s)
    # A flood that is cut short at the end, and five standard deviations.
    assert abs(len(in_on) - expected) <= on * on_s + 5 * math.sqrt(300)
    if off == 0:
        assert len(in_on) == 300


@pytest.mark.parametrize(("rate", "on_s"), [(50.0, 0.1), (0.7, 10.0), (3.0, 0.7)])
def test_the_last_request_of_a_flood_does_not_wait_for_the_next(rate: float, on_s: float) -> None:
    floods = OnOff(rate_on=rate, on_s=on_s, off_s=2.4)
    per_flood = rate * on_s
    for number in range(1, 31):
        (*_, last) = arrival_times(floods, max(1, round(number * per_flood)), Random(0))
        whole = round(number * per_flood) / per_flood
        if whole == pytest.approx(round(whole)):
            assert last == pytest.approx((round(whole) - 1) * (on_s + 2.4) + on_s)


@pytest.mark.parametrize(
    ("arrivals", "field"),
    [
        (Poisson(0.0), "rate"),
        (Gamma(1.0, -1.0), "burstiness"),
        (Gamma(float("inf"), 1.0), "rate"),
        (Constant(0.0), "interval_s"),
        (ClosedLoop(0), "users"),
        (Ramp(rate_from=0.0, rate_to=1.0), "rate_from"),
        (Ramp(rate_from=1.0, rate_to=2.0, duration_s=-1.0), "duration_s"),
        (OnOff(rate_on=0.0, on_s=1.0, off_s=1.0), "rate_on"),
        (OnOff(rate_on=1.0, on_s=1.0, off_s=1.0, rate_off=-1.0), "rate_off"),
    ],
)
def test_what_never_or_always_arrives_is_refused_by_name(arrivals: Arrivals, field: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^x.{field}: must be above 0 and finite"):
        check_arrivals("x", arrivals)
