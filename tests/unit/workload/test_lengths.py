from __future__ import annotations

import math
from random import Random
from statistics import fmean, median, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidConfig
from headway.workload import Length, LogNormal, draw_lengths, shortest
from headway.workload.lengths import check_length

LENGTHS = st.one_of(
    st.integers(1, 5000),
    st.tuples(st.integers(1, 500), st.integers(0, 500)).map(lambda p: (p[0], p[0] + p[1])),
    st.builds(
        LogNormal,
        median=st.floats(1, 5000),
        sigma=st.floats(0, 3),
        low=st.integers(1, 10),
        high=st.integers(10, 8000),
    ),
)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 2**32))
def test_lengths_keep_to_their_bounds_and_repeat(length: Length, seed: int) -> None:
    check_length("x", length)
    drawn = draw_lengths(length, 20, Random(seed))
    assert drawn == draw_lengths(length, 20, Random(seed))
    assert min(drawn) >= shortest(length) >= 1
    match length:
        case int():
            assert drawn == [length] * 20
        case (_, high):
            assert max(drawn) <= high
        case LogNormal():
            assert max(drawn) <= length.high


def test_uniform_lengths_reach_both_ends_evenly() -> None:
    drawn = draw_lengths((128, 384), 20_000, Random(0))
    assert (min(drawn), max(drawn)) == (128, 384)
    # Five standard errors of a uniform distribution's mean, of standard deviation 74.2.
    assert abs(fmean(drawn) - 256) < 5 * 74.2 / math.sqrt(20_000)
    assert pstdev(drawn) == pytest.approx(math.sqrt((257**2 - 1) / 12), rel=0.02)


def test_log_normal_lengths_have_the_median_and_the_spread_asked_for() -> None:
    drawn = draw_lengths(LogNormal(median=500, sigma=0.8, high=100_000), 20_000, Random(0))
    assert median(drawn) == pytest.approx(500, rel=0.03)
    assert pstdev([math.log(each) for each in drawn]) == pytest.approx(0.8, rel=0.03)
    assert fmean(drawn) == pytest.approx(500 * math.exp(0.32), rel=0.04)


@pytest.mark.parametrize(
    "length",
    [
        0,
        (0, 4),
        (5, 4),
        LogNormal(median=0, sigma=1, high=9),
        LogNormal(median=5, sigma=-1, high=9),
        LogNormal(median=5, sigma=math.nan, high=9),
        LogNormal(median=5, sigma=1, high=0),
    ],
)
def test_what_is_no_length_is_refused_by_name(length: Length) -> None:
    with pytest.raises(InvalidConfig, match=r"^classes\[0\].input_len: must be a number from 1"):
        check_length("classes[0].input_len", length)
