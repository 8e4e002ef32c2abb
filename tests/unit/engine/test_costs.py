"""What a prompt token costs, measured from the steps."""

from __future__ import annotations

import random

import pytest

from headway.engine.costs import CostMeter
from headway.metrics import StepRecord


def step(num_tokens: int, duration_s: float, **more: object) -> StepRecord:
    figures = {
        "step": 1,
        "time_s": 0.0,
        "chunks": (),
        "admissions": {},
        "budget": 256,
        "num_running": 1,
        "waiting": {},
        "blocks_used": 1,
        "blocks_cached": 0,
        "blocks_free": 0,
        "evictions": 0,
        "preemptions": {},
        "recomputed_tokens": 0,
        "discarded_tokens": 0,
    }
    return StepRecord(num_tokens=num_tokens, duration_s=duration_s, **figures, **more)  # type: ignore[arg-type]


def test_the_slope_is_what_one_more_token_costs() -> None:
    meter, rng = CostMeter(2e-4), random.Random(1)
    for _ in range(200):
        tokens = rng.choice([1, 2, 8, 128, 256])
        meter.observe(step(tokens, 0.050 + 0.002 * tokens + rng.gauss(0, 0.002)))
    assert meter.costs is not None
    assert meter.costs.prefill_token_s == pytest.approx(0.002, rel=0.1)
    assert meter.costs.block_copy_s == 2e-4


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    meter = CostMeter(2e-4)
    for slope in (0.001, 0.003):
        for index in range(400):
            tokens = (1, 256)[index % 2]
            meter.observe(step(tokens, slope * tokens))
    assert meter.costs is not None
    assert meter.costs.prefill_token_s == pytest.approx(0.003, rel=0.1)


def test_nothing_is_told_before_steps_of_different_sizes_were_seen() -> None:
    meter = CostMeter(2e-4)
    for _ in range(100):
        meter.observe(step(4, 0.05))
    assert meter.costs is None


def test_steps_that_failed_or_copied_are_left_out() -> None:
    meter = CostMeter(2e-4)
    for index in range(100):
        tokens = (1, 256)[index % 2]
        meter.observe(step(tokens, 0.001 * tokens))
        meter.observe(step(tokens, 9.0, failed=True))
        meter.observe(step(tokens, 9.0, swapped_in_blocks=3))
        meter.observe(step(0, 9.0, swapped_out_blocks=3))
    assert meter.costs is not None
    assert meter.costs.prefill_token_s == pytest.approx(0.001)
