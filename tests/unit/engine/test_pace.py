"""When the next plan is made while a step runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headway.engine.pace import Pace


class Waits:
    """What a pace asked for, and what it is told."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.ends_first = False

    def ended(self, handle: Any, timeout_s: float) -> bool:
        assert handle == "handle"
        self.asked.append(timeout_s)
        return self.ends_first


def step(num_tokens: int, duration_s: float, *, failed: bool = False) -> Any:
    return SimpleNamespace(num_tokens=num_tokens, duration_s=duration_s, failed=failed)


def paced(*steps: Any) -> tuple[Pace, Waits]:
    waits = Waits()
    pace = Pace(waits.ended, lead_s=0.01)
    for record in steps:
        pace.observe(record)
    return pace, waits


def test_it_waits_until_shortly_before_the_end_that_the_shortest_step_of_the_size_foretells() -> (
    None
):
    pace, waits = paced(step(64, 0.06), step(64, 0.05), step(64, 0.07))
    assert not pace.wait("handle", 64, elapsed_s=0.005)
    assert waits.asked == [pytest.approx(0.05 - 0.01 - 0.005)]


def test_a_step_that_ends_before_is_told_of() -> None:
    pace, waits = paced(step(64, 0.05))
    waits.ends_first = True
    assert pace.wait("handle", 64, elapsed_s=0.0)


def test_it_does_not_wait_where_it_does_not_know_or_it_is_time() -> None:
    pace, waits = paced(step(64, 0.05), step(256, 0.2, failed=True), step(0, 0.3))
    assert not pace.wait("handle", 256, elapsed_s=0.0)
    assert not pace.wait("handle", 0, elapsed_s=0.0)
    assert not pace.wait("handle", 64, elapsed_s=0.045)
    assert waits.asked == []


def test_sizes_are_told_apart_where_they_differ_by_more_than_a_quarter() -> None:
    pace, waits = paced(step(64, 0.05), step(80, 0.06), step(1, 0.007))
    for size in (64, 71, 80, 1):
        pace.wait("handle", size, elapsed_s=-1.0)
    assert waits.asked == pytest.approx([1.04, 1.04, 1.05, 0.997])


def test_old_steps_are_forgotten() -> None:
    pace, waits = paced(step(64, 0.05), *[step(64, 0.09)] * 8)
    pace.wait("handle", 64, elapsed_s=0.0)
    assert waits.asked == pytest.approx([0.08])
