"""docs/guide/serving.md: its commands, run in a shell as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
TIMEOUT_S = 300
END = "-- end of output --"


class Shell:
    """A shell that runs one command after the other; its background jobs are its own."""

    def __init__(self, directory: Path, port: int) -> None:
        headway = directory / "headway"
        headway.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headway "$@"\n')
        headway.chmod(0o755)
        self._port = port
        self._process = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env=os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """Its output. A command that does not end takes the shell with it, after `TIMEOUT_S`."""
        limit = threading.Timer(TIMEOUT_S, self.close)
        limit.start()
        try:
            return self._run(command)
        finally:
            limit.cancel()

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        self._process.communicate()

    def _run(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command.replace("8000", str(self._port)) + f"\necho '{END}'\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.endswith(f"{END}\n"):
                lines.append(line.removesuffix(f"{END}\n"))
                break
            lines.append(line)
        return "".join(lines).replace(str(self._port), "8000")


def steps(block: str) -> Iterator[tuple[str, str]]:
    """Its commands, each with the output that it shows. A here-document goes on to its END."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = step.partition("\nEND\n" if "<<'END'" in step else "\n")
        yield command + ("\nEND" if "<<'END'" in step else ""), output


def pattern_of(output: str) -> str:
    """`…` is anything in a line."""
    return ".*".join(map(re.escape, output.strip().split("…")))


@pytest.fixture
def shell(tmp_path: Path, model_path: Path) -> Iterator[Shell]:
    for program in ("bash", "curl", "pgrep"):
        assert shutil.which(program), f"the guide's commands need {program}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shell = Shell(tmp_path, port)
    yield shell
    shell.close()
    shell.wait()


def test_the_guide_has_commands_for_each_of_its_subjects() -> None:
    subjects = re.findall(r"^## (.*)", GUIDE, re.MULTILINE)
    for subject in ("Start", "Limits", "Overload", "Metrics", "Draining", "Keys", "Tuning"):
        assert subject in subjects
    assert len(BLOCKS) == 8


def test_its_commands_do_what_it_says(shell: Shell) -> None:
    for block in BLOCKS:
        for command, shown in steps(block):
            output = shell.run(command)
            assert re.fullmatch(pattern_of(shown), output.strip()), (command, output)


def test_its_options_exist() -> None:
    command = [sys.executable, "-m", "headway", "serve", "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for option in set(re.findall(r"--[a-z][a-z0-9-]+", GUIDE)) - OTHERS:
        assert re.search(rf"{option}\b", helped), option


OTHERS = {"--retry", "--retry-delay", "--retry-connrefused", "--minutes", "--enable-log-requests"}
"""Options of other commands."""
