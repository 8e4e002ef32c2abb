from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ModelError
from headway.models.rope import LinearScaling, Llama3Scaling, YarnScaling, rope

YARN = YarnScaling(theta=10_000.0, factor=4.0, original_positions=4096, magnitude=1.1)
LLAMA3 = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192
)


def test_frequencies_fall_from_one_towards_the_base() -> None:
    assert rope(16.0, 8).frequencies == (1.0, 0.5, 0.25, 0.125)
    assert rope(16.0, 8).magnitude == 1.0


def test_linear_scaling_divides_all() -> None:
    assert rope(16.0, 8, LinearScaling(factor=2.0)).frequencies == (0.5, 0.25, 0.125, 0.0625)


def test_divisors_come_before_the_scaling() -> None:
    scaled = rope(16.0, 8, LinearScaling(factor=2.0), (1.0, 1.0, 2.0, 4.0))
    assert scaled.frequencies == (0.5, 0.25, 0.0625, 0.015625)


def test_llama3_keeps_the_fast_divides_the_slow_and_blends_between() -> None:
    plain, scaled = rope(500_000.0, 128).frequencies, rope(500_000.0, 128, LLAMA3).frequencies
    for before, after in zip(plain, scaled, strict=True):
        turns = 8192 * before / (2 * math.pi)
        if turns >= 4:
            assert after == before
        elif turns <= 1:
            assert after == before / 8
        else:
            assert before / 8 < after < before
    blended = sum(1 < 8192 * f / (2 * math.pi) < 4 for f in plain)
    assert 0 < blended < len(plain) / 2


def test_yarn_keeps_the_first_divides_the_last_and_blends_between() -> None:
    plain, scaled = rope(10_000.0, 128).frequencies, rope(10_000.0, 128, YARN).frequencies
    shares = [after / before for before, after in zip(plain, scaled, strict=True)]
    assert shares[0] == 1.0
    assert shares[-1] == 0.25
    assert all(one >= other for one, other in pairwise(shares))
    assert rope(10_000.0, 128, YARN).magnitude == 1.1


def test_yarns_bounds_are_whole_unless_asked() -> None:
    exact = YarnScaling(
        theta=10_000.0, factor=4.0, original_positions=4096, magnitude=1.0, truncate=False
    )
    assert rope(10_000.0, 128, exact).frequencies != rope(10_000.0, 128, YARN).frequencies


@given(
    theta=st.floats(0, 2**63, exclude_min=True),
    factor=st.floats(1, 2**63),
    original=st.integers(1, 2**63),
    beta=st.floats(0, 2**63, exclude_min=True),
)
def test_absurd_numbers_give_finite_frequencies_or_an_error(
    theta: float, factor: float, original: int, beta: float
) -> None:
    for scaling in (
        None,
        LinearScaling(factor=factor),
        YarnScaling(
            theta=theta, factor=factor, original_positions=original, magnitude=1.0, beta_slow=beta
        ),
        Llama3Scaling(
            factor=factor,
            low_freq_factor=beta,
            high_freq_factor=2 * beta,
            original_positions=original,
        ),
    ):
        try:
            frequencies = rope(theta, 8, scaling).frequencies
        except ModelError:
            continue
        assert all(math.isfinite(frequency) for frequency in frequencies)


def test_a_base_of_one_cannot_be_scaled() -> None:
    with pytest.raises(ModelError, match="base 1 with YarnScaling"):
        rope(1.0, 8, YarnScaling(theta=1.0, factor=2.0, original_positions=8, magnitude=1.0))
