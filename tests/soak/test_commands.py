"""The soak and the overload, as short as they go, against the real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / script), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_short_soak_loses_nothing(model_path: Path) -> None:
    done = run("server_soak.py", "--minutes", "0.15", "--round-seconds", "3", "--grown-mib", "64")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nround ") == 3
    assert done.stdout.endswith("nothing was lost, nothing grew\n")
    for word in ("answered", "refused", "left"):
        assert f" {word}" in done.stdout.splitlines()[-2]


def test_three_times_what_a_server_can_take_is_refused_at_once(model_path: Path) -> None:
    # How fast is for a quiet machine to say: the limits here are those of one that is not.
    done = run("overload.py", "--seconds", "3", "--lenience", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "were rejected" in done.stdout
