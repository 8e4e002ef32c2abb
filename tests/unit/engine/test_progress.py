from __future__ import annotations

import pytest

from headway.engine.progress import StepEstimate
from headway.metrics import StepRecord


def took(num_tokens: int, duration_s: float, *, failed: bool = False) -> StepRecord:
    return StepRecord(
        step=1,
        time_s=0.0,
        duration_s=duration_s,
        chunks=(),
        num_tokens=num_tokens,
        admissions={},
        budget=8192,
        num_running=1,
        waiting={},
        blocks_used=0,
        blocks_cached=0,
        blocks_free=0,
        evictions=0,
        preemptions={},
        recomputed_tokens=0,
        discarded_tokens=0,
        failed=failed,
    )


def test_the_longest_recent_step_of_a_size_is_the_estimate() -> None:
    estimate = StepEstimate()
    for duration_s in (0.5, *[0.02] * 7):
        estimate(took(60, duration_s), ())
    assert estimate.seconds(64) == 0.5
    estimate(took(64, 0.03), ())  # the first is out of sight
    assert estimate.seconds(40) == 0.03


def test_a_larger_step_is_estimated_from_a_smaller_one_in_proportion() -> None:
    estimate = StepEstimate()
    estimate(took(1, 0.02), ())
    assert estimate.seconds(8192) == pytest.approx(0.02 * 8192)
    estimate(took(256, 1.0), ())
    assert estimate.seconds(8192) == pytest.approx(32.0)
    assert estimate.seconds(2) == pytest.approx(0.04)


def test_a_smaller_step_takes_no_longer_than_a_larger_one() -> None:
    estimate = StepEstimate()
    estimate(took(256, 1.0), ())
    assert estimate.seconds(1) == 1.0


def test_while_nothing_was_measured_a_full_budget_has_minutes() -> None:
    estimate = StepEstimate()
    estimate(None, ())
    estimate(took(5, 99.0, failed=True), ())
    assert estimate.seconds(1) < 0.1
    assert estimate.seconds(8192) > 300
