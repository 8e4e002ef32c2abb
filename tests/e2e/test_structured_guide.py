"""docs/guide/structured_outputs.md: its examples, run as they stand there."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guide/structured_outputs.md"
PYTHON, HTTP = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)


def test_the_example_with_llm(capsys: pytest.CaptureFixture[str], model_path: Path) -> None:
    exec(compile(PYTHON, str(GUIDE), "exec"), {})
    outputs = dict(line.split(": ", 1) for line in re.split(r"\n(?=[a-z]+: )", _out(capsys)))
    assert set(json.loads(outputs["json"])) == {"name", "age"}
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", outputs["regex"])
    assert outputs["choice"] in ("positive", "negative")
    assert "," in outputs["grammar"]


def test_the_example_with_openai(capsys: pytest.CaptureFixture[str], server_url: str) -> None:
    example = HTTP.replace("http://127.0.0.1:8000", server_url) + "\nclient.close()\n"
    # In a thread of its own: an example may leave what the interpreter's end would collect.
    thread = threading.Thread(target=exec, args=(compile(example, str(GUIDE), "exec"), {}))
    thread.start()
    thread.join()
    place, _, word = _out(capsys).rpartition("\n")
    assert set(json.loads(place)) == {"city", "country"}
    assert word in ("yes", "no")


def _out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()
