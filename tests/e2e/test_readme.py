"""The README's Python examples, run as they stand there."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_both_examples_are_found() -> None:
    assert ["openai" in example for example in EXAMPLES] == [True, False]


def test_the_example_with_llm(capsys: pytest.CaptureFixture[str], model_path: Path) -> None:
    exec(compile(EXAMPLES[1], "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith(" Paris.")
    assert len(out.splitlines()) >= 2


def test_the_example_with_openai(capsys: pytest.CaptureFixture[str], server_url: str) -> None:
    assert "http://127.0.0.1:8000" in EXAMPLES[0]
    example = EXAMPLES[0].replace("http://127.0.0.1:8000", server_url) + "\nclient.close()\n"
    # In a thread of its own: an example may leave what the interpreter's end would collect.
    thread = threading.Thread(target=exec, args=(compile(example, "README.md", "exec"), {}))
    thread.start()
    thread.join()
    assert "Tokyo" in capsys.readouterr().out
