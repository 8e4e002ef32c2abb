"""The soak: as many steps as the time of a test allows, and what it says of a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from headway.clock import VirtualClock
from headway.core.kv_cache import KVCacheManager
from headway.sim import soak
from headway.sim.situations import random_setup

STEPS, MAX_SECONDS = 50_000, 7.0
SEED = 1
PLANS = """
import hashlib, sys
from headway.sim.soak import run_trial
for seed in range(40):
    plans = repr(run_trial(seed, keep_plans=True).plans)
    print(seed, hashlib.sha256(plans.encode()).hexdigest())
"""


def test_the_scheduler_stands_a_soak() -> None:
    lines: list[str] = []
    status = soak.run_soak(STEPS, SEED, max_seconds=MAX_SECONDS, say=lines.append)
    print(lines[-1])
    assert status == 0, "\n".join(lines)


def test_a_failure_is_told_with_its_seed_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = KVCacheManager.release

    def forgetful(self: KVCacheManager, request: object, **options: object) -> None:
        if request.request_id != "r5":  # type: ignore[attr-defined]
            release(self, request, **options)  # type: ignore[arg-type]
        request.held = None  # type: ignore[attr-defined]

    monkeypatch.setattr(KVCacheManager, "release", forgetful)
    lines: list[str] = []
    assert soak.run_soak(100_000, 30, say=lines.append) == 1
    seed = int(lines[-1].removeprefix("again: headway soak --steps 1 --seed "))
    assert f"trial {seed} failed: AssertionError" in lines[-2]
    assert lines[-3] == f"configuration: {random_setup(Random(seed))}"
    again: list[str] = []
    assert soak.run_soak(1, seed, say=again.append) == 1
    assert again[-2:] == lines[-2:]


def test_the_soak_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run_trial = VirtualClock(), soak.run_trial

    def slow(seed: int, *, keep_plans: bool = False) -> object:
        clock.advance(10.0)
        return run_trial(seed, keep_plans=keep_plans)

    monkeypatch.setattr(soak, "run_trial", slow)
    lines: list[str] = []
    assert soak.run_soak(10**9, SEED, max_seconds=25.0, clock=clock, say=lines.append) == 0
    assert "in 2 trials, all well" in lines[-1]


def test_i16_the_plans_do_not_depend_on_the_process() -> None:
    """Two processes hash strings and bytes differently; the plans are the same."""
    outputs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", PLANS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        outputs.add(result.stdout)
    assert len(outputs) == 1
