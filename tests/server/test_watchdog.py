from __future__ import annotations

from headway.server.process.messages import Heartbeat
from headway.server.process.watchdog import Watchdog

CHECK_S = 0.25


def watch(
    *, until: float, heard_until: float, beat: Heartbeat | None = None, paused: float = 0.0
) -> tuple[float, str] | None:
    """When a fault was found, and which; times count from 0. `paused`: for so long nobody
    checked, from second 2 on."""
    watchdog = Watchdog(0.0, step_timeout_s=30.0)
    if beat is not None:
        watchdog.beat(beat)
    now = 0.0
    while now < until:
        now += CHECK_S + (paused if now == 2.0 else 0.0)
        if now <= heard_until:
            watchdog.heard(now)
        if (fault := watchdog.fault(now)) is not None:
            return now, fault
    return None


def test_three_seconds_of_silence_are_a_fault() -> None:
    found = watch(until=20, heard_until=10)
    assert found is not None
    assert 13 < found[0] <= 13.5
    assert "not been heard of for 3." in found[1]
    assert watch(until=20, heard_until=20) is None


def test_silence_while_this_process_stood_still_is_none() -> None:
    assert watch(until=120, heard_until=1.5, paused=60.0) == (65.0, found_after(3.25))


def found_after(silent_s: float) -> str:
    return f"the engine's process has not been heard of for {silent_s:.1f} s"


def test_a_step_is_hung_after_the_timeout_and_ten_times_its_estimate() -> None:
    for step_s, estimate_s, hung in [
        (None, 0.0, False),
        (29.9, 0.01, False),
        (30.1, 0.01, True),
        (30.1, 3.1, False),
        (31.1, 3.1, True),
        (400.0, 41.0, False),  # a budget of 8,192 on a slow machine
    ]:
        found = watch(until=1, heard_until=1, beat=Heartbeat(step_s, estimate_s))
        assert (found is not None) == hung, (step_s, estimate_s)
        assert found is None or "--step-timeout 30" in found[1]


def test_a_step_that_ended_is_forgotten() -> None:
    watchdog = Watchdog(0.0, step_timeout_s=30.0)
    watchdog.beat(Heartbeat(29.0, 0.1))
    watchdog.beat(Heartbeat(None, 0.0))
    watchdog.heard(0.5)
    assert watchdog.fault(1.0) is None
