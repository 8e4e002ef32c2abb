"""`headway serve` as a process, for tests with real clients."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import httpx
import pytest

from waiting import IN_TIME_S


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    banner: str

    def metric(self, name: str, label: str = "") -> float:
        """The sum over the series of that name that have the label."""
        text = httpx.get(f"{self.url}/metrics", timeout=IN_TIME_S).text
        series = re.findall(rf"^headway:{name}({{[^}}]*}}) (\S+)$", text, re.MULTILINE)
        return sum(float(value) for labels, value in series if label in labels)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "headway", "serve", "--port", "0", "--debug-invariants"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()  # once it takes requests; nothing if it failed
            match = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert match, process.stderr.read()
            lines = iter(process.stderr.readline, "")
            banner = "".join(takewhile(lambda line: not line.startswith("Started"), lines))
            yield Server(process, match[0], banner)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def server(model_path: Path) -> Iterator[Server]:
    """One for all tests; they leave it running."""
    with serving() as server:
        yield server


@pytest.fixture
def server_url(server: Server) -> str:
    return server.url
