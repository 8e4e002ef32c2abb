"""Windows, trends and quantiles."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.doctor.readings import Distribution, Window, trend
from unit.doctor.made import NUM, made


def test_a_window_counts_what_rose_within_it() -> None:
    seen = Window(made(offset=5000.0, every_s=0.5))
    assert seen.duration_s == 20
    assert seen.increase("prompt_tokens") == 800 * (NUM - 1)
    assert seen.rate("prompt_tokens") == 1600
    assert seen.increase("never_heard_of") is None


def test_what_was_counted_before_a_restart_is_not_lost_and_not_counted_twice() -> None:
    seen = Window(made(offset=5000.0, restart_at=30))
    assert seen.num_restarts == 1
    assert seen.increase("prompt_tokens") == 800 * (NUM - 2)
    times = seen.distribution("request_queue_time_seconds")
    assert times is not None
    assert times.count == 4 * (NUM - 2)


def test_a_process_that_says_it_began_anew_did_though_no_counter_fell() -> None:
    series = made()
    samples = [
        replace(each, started_s=at)
        for at, each in zip((1.0,) * 20 + (2.0,) * (NUM - 20), series.samples, strict=True)
    ]
    seen = Window(replace(series, samples=tuple(samples)))
    assert seen.num_restarts == 1
    assert Window(series).num_restarts == 0


def test_quantiles_lie_within_their_bucket() -> None:
    times = Distribution((1.0, 2.0, float("inf")), (10.0, 20.0, 21.0), 30.0)
    assert times.quantile(0.25) == pytest.approx(0.525)
    assert times.quantile(0.75) == pytest.approx(1.575)
    assert times.quantile(1.0) == 2.0
    assert times.mean == pytest.approx(30 / 21)


def test_nothing_observed_is_no_distribution() -> None:
    assert (
        Window(made(times={"inter_token_latency_seconds": ()})).distribution(
            "inter_token_latency_seconds"
        )
        is None
    )


@pytest.mark.parametrize("length", [1, 2, 15, 60, 1000])
def test_a_steady_rise_is_significant_once_there_are_values_enough(length: int) -> None:
    found = trend([float(index) for index in range(length)])
    assert (found.z > 2.6) == (length >= 15)
    if length >= 15:
        assert found.late_rise == pytest.approx(found.rise / 3, rel=0.3)


def noise(draw: random.Random) -> list[float]:
    return [draw.random() for _ in range(61)]


def queue(draw: random.Random) -> list[float]:
    """Requests in a stationary M/M/10 at 90 % load, each second of a minute; one takes 10 s."""
    rates, now, next_s, present, found = (0.9, 0.1), -300.0, -300.0, 10, []
    while len(found) < 61:
        while now < next_s:
            came, went = rates[0], rates[1] * min(present, 10)
            now += draw.expovariate(came + went)
            if now < next_s:
                present += 1 if draw.random() < came / (came + went) else -1
        if next_s >= 0:
            found.append(max(0.0, present - 10))
        now, next_s = next_s, next_s + 1
    return found


@pytest.mark.parametrize(("make", "most"), [(noise, 0.02), (queue, 0.07)])
def test_what_only_fluctuates_rarely_looks_like_a_trend(
    make: Callable[[random.Random], list[float]], most: float
) -> None:
    draw = random.Random(1)
    found = [trend(make(draw)).z for _ in range(200)]
    assert sum(z > 2.6 for z in found) <= most * len(found)


def test_the_end_of_a_window_is_as_long_as_is_asked_for_or_not_there() -> None:
    seen = Window(made(every_s=0.4))
    end = seen.last(5.0)
    assert end is not None
    assert end.duration_s == pytest.approx(5.2)
    assert end.series.samples[-1] is seen.series.samples[-1]
    assert seen.last(17.0) is None


def test_a_constant_has_none() -> None:
    assert trend([3.0] * 50).z == 0
