"""The soak and the overload, as short as they go, against the real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / script), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


ONE_THREAD = ("--", "--num-threads", "1")
"""Leaves the clients a core."""


def test_a_short_soak_loses_nothing(model_path: Path) -> None:
    options = ("--num-kv-blocks", "768", "--max-num-seqs", "32", "--max-num-queued-reqs", "64")
    done = run(
        "server_soak.py", "--minutes", "0.1", "--round-seconds", "2", "--grown-mib", "64",
        *ONE_THREAD, *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nround ") == 3
    assert done.stdout.endswith("nothing was lost, nothing grew\n")
    assert " answered" in done.stdout.splitlines()[-2]


def test_three_times_what_a_server_can_take_is_refused_at_once(model_path: Path) -> None:
    # How fast is for a quiet machine to say: the limits here are those of one that is not.
    few = ("--seconds", "2", "--running", "4", "--queued", "4", "--lenience", "8")
    done = run("overload.py", *few, *ONE_THREAD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "were rejected" in done.stdout
