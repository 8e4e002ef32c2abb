"""A trial of a real server, by real signals."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from headway.bench.figures import Wanted
from headway.bench.serving import Load
from headway.bench.trials import Variant, run_trials
from headway.workload import TrafficClass, Workload
from waiting import IN_TIME_S, in_time


def test_a_trial_measures_a_real_server(model_path: Path) -> None:
    requests = TrafficClass(name="a", num_prompts=3, input_len=16, output_len=4)
    load = Load(
        workload=Workload(classes=(requests,)),
        seeds=(0,),
        text=False,
        wanted=Wanted(metrics=("ttft",), percentiles=(99,)),
    )
    said: list[str] = []
    variant = Variant(name="small", options=("--num-kv-blocks=64", "--probe=off"))
    (trial,) = run_trials([variant], load, rounds=1, say=said.append)
    assert trial.result["completed"] == 3
    assert trial.result["median_ttft_ms"] > 0
    assert trial.counters["generation_tokens_total"] == 12
    assert trial.counters["num_preemptions_total"] == 0
    assert trial.samples
    assert "small" in said[0]


def test_a_terminated_measurement_leaves_no_process_behind(model_path: Path) -> None:
    # Two loads on one way to run the server: it is tried but once before the first round.
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headway", "bench", "sweep", "--request-rate", "1,2"),
            *("--num-prompts", "3", "--output-len", "8000", "--", "--probe", "off"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            assert any("Round 1 of 3" in line for line in iter(process.stderr.readline, ""))
            # What was tried has ended by now: these are the round's server and its engine.
            assert in_time(lambda: len(descendants(process.pid)) >= 2)
            started = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=IN_TIME_S) == 130
        finally:
            process.kill()
    assert in_time(lambda: not any(map(is_running, started)))


def is_running(pid: int) -> bool:
    """Whoever inherits what has ended may take a while to bury it."""
    try:
        return stat(Path(f"/proc/{pid}/stat"))[0] != "Z"
    except OSError:
        return False


def stat(path: Path) -> list[str]:
    """State, parent, …"""
    return path.read_text().rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # those that have ended meanwhile
            if int(stat(path)[1]) == pid:
                children.append(int(path.parent.name))
    return [each for child in children for each in (child, *descendants(child))]
