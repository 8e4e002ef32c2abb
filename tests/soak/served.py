"""`headway serve` as processes: what they take of the machine, and what they say of themselves."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["IDLE", "Usage", "Served", "gauges", "growth", "median", "serving"]

IDLE = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
"""Gauges that are 0 when nobody asks for anything; the last says that every block is back."""


@dataclass(frozen=True)
class Usage:
    """Of one process."""

    anonymous_bytes: int
    """Resident memory that is its own; pages of files are left out, for the kernel keeps and drops
    them as it likes."""
    threads: int
    files: int


class Served:
    """A server that runs: its own process and those that it started."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def pids(self) -> dict[str, int]:
        """By role: `server`, and `engine` for what it started, numbered from the second on."""
        started = sorted(_descendants(self.process.pid))
        names = ["engine", *(f"engine {i}" for i in range(2, len(started) + 1))]
        return {"server": self.process.pid} | dict(zip(names, started, strict=False))

    def usage(self) -> dict[str, Usage]:
        return {role: _usage(pid) for role, pid in self.pids().items()}


@contextlib.contextmanager
def serving(*options: str, log: Path | None = None) -> Iterator[Served]:
    """`headway serve` with the default model and these options, on a free port.

    `log` gets its standard error. It is killed at the end, if it still runs.
    """
    command = [sys.executable, "-m", "headway", "serve", "--port", "0", *options]
    with contextlib.ExitStack() as stack:
        errors = subprocess.DEVNULL if log is None else stack.enter_context(log.open("w"))
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        line = process.stdout.readline()  # once it takes requests; nothing if it failed
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert match, f"headway serve has not started: {log and log.read_text()}"
        yield Served(process, match[0])


def gauges(metrics: str, *names: str) -> dict[str, float]:
    """What `/metrics` shows of each, summed over its labels. Raises AssertionError where it shows
    nothing."""
    found = {}
    for name in names:
        lines = re.findall(
            rf"^(?:headway|vllm):{name}(?:{{[^}}]*}})? (\S+)$", metrics, re.MULTILINE
        )
        assert lines, f"/metrics does not show {name}"
        found[name] = sum(map(float, lines))
    return found


def growth(samples: list[int]) -> int:
    """By how much the last third of the samples is above the third before it, each by its median;
    the first third is that of warming up. Raises AssertionError below three samples."""
    assert len(samples) >= 3
    third = len(samples) // 3
    return median(samples[-third:]) - median(samples[-2 * third : -third])


def median(samples: list[int]) -> int:
    return sorted(samples)[len(samples) // 2]


def _descendants(pid: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # those that have ended meanwhile
            parent = path.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                children.append(int(path.parent.name))
    return [each for child in children for each in (child, *_descendants(child))]


def _usage(pid: int) -> Usage:
    status = Path(f"/proc/{pid}/status").read_text()

    def number(name: str) -> int:
        match = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
        assert match, f"/proc does not tell {name} of {pid}"
        return int(match[1])

    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Usage(number("RssAnon") * 1024, number("Threads"), files)
