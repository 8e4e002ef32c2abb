"""`headway chat` with the default model."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from headway.cli import main
from unit.models.gguf_files import llama_metadata, llama_tensors, write_gguf


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    text = "".join(line + "\n" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))


def test_a_conversation_goes_on_from_what_was_computed_for_it(
    model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "What is the capital of Japan?", "And of Italy?", "/retry")
    main(["chat", str(model_path), "--temperature", "0", "--max-tokens", "24"])
    out, err = capsys.readouterr()
    first, second, again = out.splitlines()
    assert first == "The capital of Japan is Tokyo."
    assert again == second
    numbers = re.findall(r"(\d+) of (\d+) prompt tokens cached · context (\d+)/8,192", err)
    (cold, _, used), (warm, prompt, _), (same, _, _) = [map(int, found) for found in numbers]
    assert cold == 0
    # All full blocks of the first turn: its last token was never computed.
    assert warm == (used - 1) // 16 * 16
    assert warm < prompt
    assert same >= warm


def test_a_model_without_a_template_is_refused_before_it_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "plain.gguf", llama_metadata(), llama_tensors())
    with pytest.raises(SystemExit) as caught:
        main(["chat", str(path)])
    assert "the model has no chat template; `headway generate` goes on" in str(caught.value)
    assert "loading" not in capsys.readouterr().err
