"""Servers as processes: none is left behind."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from headway.bench.launching import started
from headway.errors import HeadwayError

SERVES = 'print("Serving m at http://127.0.0.1:1234/v1 (Ctrl-C to stop)", flush=True)'


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time\n{textwrap.dedent(text)}"]


def is_gone(pid: int) -> bool:
    """At once, or as soon as the one who inherited it has looked."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
    return False


def children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def the_new_one(before: set[int]) -> int:
    (pid,) = children() - before
    return pid


def test_the_url_is_that_which_the_server_prints_and_it_has_a_session_of_its_own() -> None:
    before = children()

    async def work() -> int:
        async with started(
            program(f"print(os.getpid(), file=sys.stderr)\n{SERVES}\ntime.sleep(60)")
        ):
            child = the_new_one(before)
            assert os.getsid(child) == child
            return child

    assert is_gone(asyncio.run(work()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('sys.exit("--num-kv-blocks: no")', "did not start\n  --num-kv-blocks: no"),
        ("", "did not start; it said nothing"),
        ('print("Hello", flush=True); time.sleep(60)', "did not start"),
    ],
)
def test_one_that_does_not_start_is_told_with_its_last_words(text: str, said: str) -> None:
    async def work() -> None:
        async with started(program(text)):
            pass

    with pytest.raises(HeadwayError) as caught:
        asyncio.run(work())
    assert said in str(caught.value)


def test_only_its_last_lines_are_kept_and_it_never_waits_for_a_reader() -> None:
    lines = 'for i in range(20000): print(f"line {i} " + "x" * 50, file=sys.stderr)'

    async def work() -> None:
        async with started(program(lines)):
            pass

    with pytest.raises(HeadwayError) as caught:
        asyncio.run(work())
    assert "line 19999" in str(caught.value)
    assert "line 19980" not in str(caught.value)


def test_one_that_ignores_sigterm_is_killed_and_those_that_it_started_too() -> None:
    text = f"""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        time.sleep(60)
    {SERVES.replace("Serving m", "Serving {child}").replace('print("', 'print(f"')}
    time.sleep(60)
    """

    before = children()

    async def work() -> list[int]:
        async with started(program(text), ended_within_s=0.05):
            server = the_new_one(before)
            (child,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
            return [server, int(child)]

    assert all(map(is_gone, asyncio.run(work())))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_meanwhile_ends_it(error: type[BaseException]) -> None:
    found = []
    before = children()

    async def work() -> None:
        async with started(program(f"{SERVES}\ntime.sleep(60)")):
            found.append(the_new_one(before))
            raise error

    with pytest.raises(error):
        asyncio.run(work())
    (server,) = found
    assert is_gone(server)
