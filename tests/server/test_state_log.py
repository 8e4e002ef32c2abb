from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from headway.metrics import EngineState
from headway.server.watch.state_log import StateLog
from server.test_stats import ENDED, STATE, STEP, Observed

IDLE = EngineState(0, 0, 0, 9, 1)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    caplog.set_level(logging.INFO, "headway.server.watch.state_log")
    return _Lines(caplog)  # type: ignore[return-value]


class _Lines:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __len__(self) -> int:
        return len(self._caplog.records)

    def __getitem__(self, index: int) -> dict[str, object]:
        return self._caplog.records[index].fields  # type: ignore[attr-defined, no-any-return]


class Logged(Observed):
    def __init__(self) -> None:
        super().__init__()
        self.log = StateLog(interval_s=10.0)

    def run(self, begin: int, end: int) -> None:
        """A step a second, each of a second."""
        for second in range(begin, end):
            step = replace(STEP, duration_s=1.0, preemptions={"memory": 1}, num_output_tokens=3)
            self.log.observe(self.step(step, at=float(second)))


def test_there_is_a_line_every_ten_seconds_of_work(lines: list[dict[str, object]]) -> None:
    logged = Logged()
    logged.run(100, 110)
    assert len(lines) == 1
    logged.run(110, 135)
    assert len(lines) == 3
    assert lines[0] == {
        "running": 3,
        "waiting": 0,
        "waiting_for": None,
        "kv_used": "60.0%",
        "hit_rate": "76.2%",
        "preemptions": 10,
        "prompt_tokens_per_s": 21.0,
        "output_tokens_per_s": 3.0,
        "ended": 0,
    }


def test_a_pause_as_long_leaves_no_line_and_begins_anew(lines: list[dict[str, object]]) -> None:
    logged = Logged()
    logged.run(100, 105)
    logged.state = IDLE
    logged.log.observe(logged.step(None, ENDED, at=106.0))
    logged.state = STATE
    logged.run(500, 509)
    assert len(lines) == 0
    logged.run(509, 510)
    assert (len(lines), lines[0]["output_tokens_per_s"]) == (1, 3.0)


def test_requests_with_shorter_pauses_between_them_are_traffic(
    lines: list[dict[str, object]],
) -> None:
    logged = Logged()
    for begin in range(100, 125, 5):
        logged.state = STATE
        logged.run(begin, begin + 2)
        logged.state = IDLE
        logged.log.observe(logged.step(None, ENDED, at=begin + 2.0))
    rates = [line["output_tokens_per_s"] for line in lines]
    assert rates == [1.4, 1.2]  # five steps of three tokens in 11 s, then four in 10 s


def test_who_waits_says_for_what(lines: list[dict[str, object]]) -> None:
    logged = Logged()
    logged.state = STATE._replace(num_waiting=4)
    logged.log.observe(logged.step(replace(STEP, waiting={"blocks": 4}), at=0.0))
    logged.log.observe(logged.step(replace(STEP, waiting={"blocks": 4}), at=20.0))
    assert (lines[0]["waiting"], lines[0]["waiting_for"]) == (4, "blocks")
