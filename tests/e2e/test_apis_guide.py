"""docs/guide/apis.md: its examples, run as they stand there."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guide/apis.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("example", EXAMPLES, ids=["responses", "messages"])
def test_an_example_works(
    capsys: pytest.CaptureFixture[str], server_url: str, example: str
) -> None:
    program = example.replace("http://127.0.0.1:8000", server_url) + "\nclient.close()\n"
    # In a thread of its own: an example may leave what the interpreter's end would collect.
    thread = threading.Thread(target=exec, args=(compile(program, str(GUIDE), "exec"), {}))
    thread.start()
    thread.join()
    first, _, second = capsys.readouterr().out.partition("\n")
    assert "Paris" in first
    assert second.strip()
