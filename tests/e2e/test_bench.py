"""The measuring commands, with the default model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def bench(*argv: str) -> str:
    """Its output; in a process of its own, as it is used."""
    command = [sys.executable, "-m", "headway", "bench", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_under_load(server_url: str, tmp_path: Path) -> None:
    out = bench(
        "serve", "--base-url", server_url, "--num-prompts", "6", "--input-len", "40",
        "--output-len", "5", "--random-range-ratio", "0.5", "--request-rate", "20", "--seed", "11",
        "--temperature", "0", "--save-result", "--save-detailed", "--result-dir", str(tmp_path),
        "--result-filename", "r.json",
    )  # fmt: skip
    assert "Successful requests:                     6\n" in out
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["failed"], found["wrong_input_lens"], found["short_outputs"]) == (0, 0, 0)
    assert all(20 <= length <= 60 for length in found["input_lens"])
    assert found["token_counts"] == "usage"
    assert 0 < found["median_ttft_ms"] < found["p99_e2el_ms"]


def test_a_chat_of_exactly_the_length_asked_for(server_url: str, tmp_path: Path) -> None:
    bench(
        "serve", "--base-url", server_url, "--backend", "openai-chat", "--num-prompts", "3",
        "--random-input-len", "64", "--random-output-len", "3", "--max-concurrency", "2",
        "--save-result", "--save-detailed", "--result-dir", str(tmp_path),
        "--result-filename", "r.json",
    )  # fmt: skip
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["input_lens"] == [64, 64, 64]
    assert found["max_concurrent_requests"] == 2


def test_an_engine_without_a_server(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    common = ("--input-len", "16", "--output-len", "3", "--num-kv-blocks", "64")
    options = (*common, "--output-json", str(path), "--model", str(model_path))
    out = bench("offline", "--num-prompts", "3", "--profile", *options)
    assert "tokens/s" in out
    assert "execute" in out
    found = json.loads(path.read_text())
    for name in ("output_tokens_per_s", "prefill_tokens_per_s", "decode_tokens_per_s"):
        assert found[name] > 0
        assert found["limits"][name] > 0
    settings = found["settings"]
    assert (settings["num_prompts"], settings["input_len"], settings["output_len"]) == (3, 16, 3)
    assert settings["engine"]["num_kv_blocks"] == 64


def test_one_sequence_alone(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    common = ("--input-len", "16", "--output-len", "3", "--num-kv-blocks", "64")
    options = (*common, "--output-json", str(path), "--model", str(model_path))
    bench("latency", "--num-iters", "2", *options)
    found = json.loads(path.read_text())
    assert len(found["latencies"]) == 2
    assert found["percentiles"]["50"] == sum(found["latencies"]) / 2
    assert found["decode_tokens_per_s"] > 0
