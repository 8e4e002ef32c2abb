from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from headway import __version__
from headway.cli import main
from headway.config import EngineArgs


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int | str | None, str]:
    """Exit code or message, and what was printed."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    out, err = capsys.readouterr()
    return caught.value.code, out + err


def test_help_shows_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "serve", "--help")
    assert code == 0
    for item in fields(EngineArgs):
        assert "--" + item.name.replace("_", "-") in text
    joined = " ".join(text.split())
    assert "tokens per KV block: 16 or 32; default: the recipe's, or 16" in joined
    assert (
        "new and preempted requests leave free while others run (vLLM: 0) (default: 0.01)" in joined
    )
    assert "(vLLM's option of this name counts running ones too)" in joined
    assert "40 % of the memory" in joined
    assert "127.0.0.1" in joined


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"headway {__version__}\n")


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "serve", "--tensor-parallel-size", "4")
    assert code == 2
    assert "--tensor-parallel-size" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block-size", "8"), "--block-size: must be 16 or 32, not 8"),
        (
            ("--max-num-batched-tokens", "0"),
            "--max-num-batched-tokens: must be at least 1",
        ),
        (
            ("--num-kv-blocks", "2", "--max-model-len", "99"),
            "--max-model-len: 99 tokens do not fit",
        ),
        (("--kv-cache-memory", "lots"), "--kv-cache-memory: must be a size like 2GiB"),
        (("--model", "absent.gguf"), "'absent.gguf' is neither a file nor a known model"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_named(
    capsys: pytest.CaptureFixture[str], model_path: Path, options: tuple[str, ...], message: str
) -> None:
    model = () if "--model" in options else ("--model", str(model_path))
    code, _ = run(capsys, "generate", "hello", *model, *options)
    assert message in str(code)


def test_a_prompt_that_is_empty_or_no_text_is_told_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _ = run(capsys, "generate", "", "--model", "absent.gguf")
    assert "prompt: is empty" in str(code)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    code, _ = run(capsys, "generate", "-", "--model", "absent.gguf")
    assert "prompt: standard input is not UTF-8" in str(code)


def test_generate_offers_no_option_for_many_requests(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = run(capsys, "generate", "--help")
    assert "--dtype" in text
    assert "--max-num-seqs" not in text
    assert "--scheduling-policy" not in text


def test_a_host_that_is_not_here_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(capsys, "serve", "--host", "192.0.2.1", "--model", "absent.gguf")
    assert "--host: cannot listen on 192.0.2.1:8000" in str(code)


def test_a_bad_sampling_value_is_named_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _ = run(capsys, "generate", "hello", "--model", "absent.gguf", "--top-p", "2")
    assert "error: --top-p: must be between 0 and 1, not 2" in str(code)


def test_a_busy_port_is_told_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _ = run(capsys, "serve", "--port", port, "--model", "absent.gguf")
    assert f"--port: cannot listen on 127.0.0.1:{port}" in str(code)


def test_output_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway", "models", "--cache-dir", str(tmp_path)]
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert result.stderr == ""
