"""guidellm: its own benchmark, from its own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compat.tokenizer import save_tokenizer


@pytest.fixture(scope="module")
def tokenizer_directory(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(model_path, directory)
    return directory


def benchmark(*argv: str, output: Path) -> dict[str, Any]:
    """Runs it; the one benchmark of its report."""
    command = [sys.executable, "-m", "guidellm", "run", *argv, "--disable-console"]
    command += ["--output", f"kind=json,path={output}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (found,) = json.loads(output.read_text())["benchmarks"]
    return found


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("profile", ["kind=concurrent,streams=2", "kind=constant,rate=4"])
def test_a_benchmark_of_synthetic_text(
    server_url: str,
    model_name: str,
    tokenizer_directory: Path,
    tmp_path: Path,
    path: str,
    profile: str,
) -> None:
    backend = f"kind=openai_http,target={server_url},model={model_name},request_format={path}"
    found = benchmark(
        *("--backend", backend),
        *("--profile", profile),
        *("--constraint", "kind=max_requests,count=8"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer_directory}"),
        *("--data", "kind=synthetic_text,prompt_tokens=48,output_tokens=8"),
        output=tmp_path / "report.json",
    )
    made = found["metrics"]["request_totals"]
    errors = [request["info"]["error"] for request in found["requests"]["errored"][:1]]
    assert not errors
    # It may break the last ones off, as soon as enough are done.
    assert made["successful"] + made["incomplete"] == 8
    assert made["successful"] >= 6
    for request in found["requests"]["successful"]:
        assert request["output_tokens"] == 8
        assert request["time_to_first_token_ms"] > 0
