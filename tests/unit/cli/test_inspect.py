"""`headway inspect` and `headway models`, on small files and the default model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli import inspect, main
from headway.models.sources import DEFAULT_MODEL
from unit.models.gguf_files import (
    STRING,
    VOCAB,
    field,
    llama_metadata,
    llama_tensors,
    raw_gguf,
    string,
    tensor,
    write_gguf,
)

Shown = tuple[int | str | None, str]
Run = Callable[..., Shown]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit code, or the message in its place, and standard output; with caches of its own."""
    monkeypatch.setenv("HEADWAY_CACHE_DIR", str(tmp_path / "cache"))

    def run(*argv: str | Path) -> Shown:
        try:
            main([str(argument) for argument in argv])
        except SystemExit as error:
            return error.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    return run


def has_memory(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(inspect, "available_host_bytes", lambda: num_bytes)


def test_a_model_that_runs_is_shown_with_what_it_takes(
    run: Run, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_memory(monkeypatch, 8 * 10**9)
    code, text = run("inspect", model_path, "--max-model-len", "1000", "--max-num-seqs", "4")
    assert code == 0
    assert text.endswith("\nRuns here.\n")
    squeezed = " ".join(text.split())
    for part in (
        "family llama, GGUF",
        "parameters 134.5M, most in Q4_1",
        "context 8,192 tokens",
        "tokenizer gpt2 (smollm), 49,152 tokens",
        "chat template yes",
        "OF 4 × 1,000 KV CACHE HOLDS",
        "float32 538.1 MB 46.1 kB 184.3 MB 4,032 tokens",  # 4 × 63 blocks of 16
        "bfloat16 269.0 MB 23.0 kB 92.2 MB 4,032 tokens",
        "int8 135.3 MB 12.2 kB 49.0 MB 4,032 tokens",
        "8.0 GB are available now",
        "F32 61 35.1K 140.5 kB",
        "general.architecture 'llama'",
        "tokenizer.ggml.tokens 49,152 items: '<|endoftext|>', ",
    ):
        assert part in squeezed


@pytest.mark.parametrize(
    ("num_bytes", "code", "verdict"),
    [
        (300 * 10**6, 0, "Runs here with --dtype bfloat16."),
        (200 * 10**6, 0, "Runs here with --dtype int8."),
        (130 * 10**6, 1, "Does not run here: kv_cache_memory: 130,000,000 bytes are available"),
    ],
)
def test_a_model_that_is_too_large_says_what_would_fit(
    run: Run, model_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, code: int,
    verdict: str,
) -> None:  # fmt: skip
    has_memory(monkeypatch, num_bytes)
    found, text = run("inspect", model_path)
    assert found == code
    assert text.splitlines()[-1].startswith(verdict)


def test_json_says_the_same(run: Run, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_memory(monkeypatch, 540 * 10**6)
    code, text = run("inspect", model_path, "--json")
    report: dict[str, Any] = json.loads(text)
    assert (code, report["runs"], report["problem"]) == (0, True, None)
    assert report["model"]["num_parameters"] == 134_515_008
    assert report["model"]["chat_template"] is True
    float32, bfloat16, int8 = report["memory"]["dtypes"]
    assert float32["kv_cache_tokens"] < 100
    assert bfloat16["problem"] is None
    assert bfloat16["kv_bytes"] == 8192 * 23_040
    # A scale for each row of weights, and for each of 2 × 3 heads of 64 in 30 layers.
    num_rows = 49_152 + 30 * (576 + 192 + 192 + 576 + 1536 + 1536 + 576)
    assert int8["weight_bytes"] == 134_515_008 + 4 * num_rows
    assert int8["kv_bytes"] == 8192 * 30 * 2 * 3 * (64 + 4)
    assert report["metadata"]["tokenizer.ggml.token_type"] == {"length": 49_152, "first": [3] * 4}


def test_an_unknown_architecture_is_named_and_its_metadata_shown(run: Run, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "odd.gguf", {"mamba.block_count": 3}, llama_tensors(), architecture="mamba"
    )
    code, text = run("inspect", path)
    assert code == 1
    assert "mamba.block_count" in text
    assert "F32" in text
    last = text.splitlines()[-1]
    assert last.startswith(f"Does not run here: {path}: general.architecture")
    assert "llama" in last


def test_a_type_that_does_not_load_is_listed_beside_the_metadata(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "iq4.gguf"
    architecture = field("general.architecture", STRING, string("llama"))
    path.write_bytes(
        raw_gguf(fields=(architecture,), tensors=(tensor("w", (2, 256), 23),), data=bytes(272))
    )
    code, text = run("inspect", path)
    assert code == 1
    assert "general.architecture  'llama'" in text
    assert "IQ4_XS 1 512 272 B" in " ".join(text.split())
    assert f"Does not run here: {path}: tensor 'w': has type IQ4_XS; those that work: " in text


def test_a_chat_template_that_cannot_be_used_is_told_and_the_model_runs(
    run: Run, tmp_path: Path
) -> None:
    tokenizer = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": (0.0,) * VOCAB,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.token_type": (2, *[1] * (VOCAB - 1)),
        "tokenizer.chat_template": "{{ messages | nonsense }}",
    }
    path = write_gguf(tmp_path / "odd.gguf", llama_metadata() | tokenizer, llama_tensors())
    code, text = run("inspect", path)
    assert (code, text.splitlines()[-1]) == (0, "Runs here.")
    assert re.search(r"chat template +.*nonsense", text)


def test_a_model_without_a_tokenizer_does_not_run(run: Run, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "mute.gguf", llama_metadata(), llama_tensors())
    code, text = run("inspect", path)
    assert code == 1
    assert "family         llama" in text
    assert "tokenizer.ggml.model" in text.splitlines()[-1]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all"], ids=repr)
def test_a_damaged_file_is_told_as_such(run: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    code, text = run("inspect", path)
    assert code == 1
    assert text.splitlines()[-1].startswith(f"Does not run here: {path}: ")
    code, text = run("inspect", path, "--json")
    assert (code, json.loads(text)["model"]) == (1, None)


def test_of_a_directory_of_another_kind_the_configuration_is_shown(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "list": [1, 2, 3, 4, 5]}')
    (tmp_path / "pytorch_model.bin").touch()
    code, text = run("inspect", tmp_path)
    assert code == 1
    assert "model_type  'bert'" in text
    assert "5 items: 1, 2, 3, 4, …" in text
    assert "pytorch_model.bin" in text.splitlines()[-1]


def test_an_empty_directory_is_no_model(run: Run, tmp_path: Path) -> None:
    code, text = run("inspect", tmp_path)
    assert code == 1
    assert f"Does not run here: {tmp_path}" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("absent.gguf",), "'absent.gguf' is neither a file nor a known model; what works is"),
        (("org/absent",), "org/absent is not in .*; `headway pull org/absent` fetches it"),
        ((), f"{DEFAULT_MODEL} is not in .*; `headway pull` fetches it"),
    ],
)
def test_what_is_not_here_is_not_fetched(run: Run, argv: tuple[str, ...], message: str) -> None:
    code, _ = run("inspect", *argv)
    assert re.search(message, str(code))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-model-len", "9000", "--max-model-len: must be between 2 and the model's 8,192"),
        ("--max-num-seqs", "0", "--max-num-seqs: must be at least 1, not 0"),
    ],
)
def test_a_length_or_number_that_cannot_be_meant_is_an_error(
    run: Run, model_path: Path, option: str, value: str, message: str
) -> None:
    code, _ = run("inspect", model_path, option, value)
    assert message in str(code)


def test_the_list_shows_what_runs_and_why_the_rest_does_not(
    run: Run, model_path: Path, tmp_path: Path
) -> None:
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    (models / f"{DEFAULT_MODEL}.gguf").symlink_to(model_path)
    (models / "broken.gguf").write_bytes(b"GGUF")
    code, text = run("models")
    assert code == 0
    head, broken, default = text.splitlines()
    assert head.split() == ["NAME", "FAMILY", "PARAMETERS", "PRECISION", "CONTEXT", "SIZE"]
    assert broken.startswith("broken")
    assert "4 B; does not run: version" in broken
    assert default.split() == [
        DEFAULT_MODEL, "llama", "134.5M", "Q4_1", "8,192", "98.4", "MB", "(default)",
    ]  # fmt: skip


def test_the_list_as_json(run: Run, model_path: Path, tmp_path: Path) -> None:
    hub = tmp_path / "cache" / "hub" / "models--org--name"
    (hub / "snapshots" / "abc").mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "v1").write_text("abc")
    (hub / "snapshots" / "abc" / "x-Q4_1.gguf").symlink_to(model_path)
    _, text = run("models", "--json")
    (record,) = json.loads(text)
    assert (record["name"], record["revision"], record["default"]) == ("org/name", "v1", False)
    assert (record["precision"], record["problem"]) == ("Q4_1", None)
    assert run("inspect", "org/name", "--revision", "v1")[0] == 0
    _, text = run("models")
    assert text.splitlines()[1].endswith("--revision v1")


def test_an_empty_cache_says_how_to_fill_it(run: Run) -> None:
    code, text = run("models")
    assert code == 0
    assert "`headway pull` fetches one" in text
    assert run("models", "--json") == (0, "[]\n")


@pytest.mark.parametrize("command", ["inspect", "models"])
def test_neither_torch_nor_the_hubs_client_is_needed(command: str, model_path: Path) -> None:
    program = (
        "import sys\nfrom headway.cli import main\n"
        f"main({[command, str(model_path)][: 1 + (command == 'inspect')]!r})\n"
        "print(*{'torch', 'transformers', 'huggingface_hub.hf_api'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == ""


def test_help_needs_neither_numpy_nor_any_client() -> None:
    program = (
        "import sys\nfrom headway.cli.parser import build_parser\nbuild_parser().format_help()\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'tokenizers', 'numpy', 'jinja2'}\n"
        "print(*heavy & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "\n", "")
