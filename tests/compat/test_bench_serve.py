"""Our own `headway bench serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_a_load_is_answered_as_asked(server_url: str, tmp_path: Path, backend: str) -> None:
    command = [sys.executable, "-m", "headway", "bench", "serve", "--base-url", server_url]
    command += ["--backend", backend, "--num-prompts", "12", "--request-rate", "10"]
    command += ["--random-input-len", "64", "--random-output-len", "8", "--save-result"]
    command += ["--result-dir", str(tmp_path), "--result-filename", "found.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["completed"], found["failed"], found["short_outputs"]) == (12, 0, 0)
    assert found["total_output_tokens"] == 12 * 8
