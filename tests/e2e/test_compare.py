"""A trial of a real server, by real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from headway.bench.figures import Wanted
from headway.bench.serving import Load
from headway.bench.trials import Variant, run_trials
from headway.workload import TrafficClass, Workload


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


def test_a_terminated_comparison_leaves_no_server_behind(model_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headway", "compare", "--set", "max_num_seqs=1"),
            *("--num-prompts", "3", "--output-len", "8000", "--", "--probe", "off"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            assert "Trying" in process.stderr.readline()
            servers = _children(process.pid)
            while not servers:
                assert process.poll() is None
                servers = _children(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    assert not any(map(_is_alive, servers))


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
