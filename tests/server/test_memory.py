"""Memory goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from headway.server.memory import drop_errors, hold_less_memory, share_one_arena

FREES_ALL_BUT_THE_LAST = r"""
import re
from headway.server.memory import drop_errors

def taken():
    with open("/proc/self/status") as status:
        return int(re.search(r"RssAnon:\s+(\d+)", status.read())[1]) * 1024

class Refused(Exception):
    pass

before = taken()
buffers = [bytearray(60_000) for _ in range(1000)]
last = buffers.pop()
cycle = Refused(buffers)
cycle.itself = cycle
del buffers, cycle
kept = taken() - before
drop_errors()
print(kept, taken() - before)
"""


FREES_A_LARGE_ONE_THEN_MANY_IN_A_THREAD = """
import re, sys, threading
from headway.server import memory

def taken():
    with open("/proc/self/status") as status:
        return int(re.search(r"RssAnon:\\s+(\\d+)", status.read())[1]) * 1024

def work():
    bytearray(30_000_000)
    many = [bytearray(60_000) for _ in range(500)]
    del many
    done.set()
    end.wait()

for name in sys.argv[1:]:
    getattr(memory, name)()
done, end = threading.Event(), threading.Event()
before = taken()
threading.Thread(target=work).start()
done.wait()
memory.return_memory()
print(taken() - before)
end.set()
"""
glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")


def printed(script: str, *arguments: str) -> list[int]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [int(word) for word in done.stdout.split()]


@glibc
def test_what_is_free_goes_back_to_the_system() -> None:
    kept, left = printed(FREES_ALL_BUT_THE_LAST)
    assert kept > 50e6
    assert left < 5e6


@glibc
def test_a_thread_that_had_much_does_not_keep_it() -> None:
    (kept,) = printed(FREES_A_LARGE_ONE_THEN_MANY_IN_A_THREAD)
    assert kept > 20e6
    for mended in (hold_less_memory, share_one_arena):
        (left,) = printed(FREES_A_LARGE_ONE_THEN_MANY_IN_A_THREAD, mended.__name__)
        assert left < 5e6


def test_another_c_library_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    hold_less_memory()
    share_one_arena()
    drop_errors()
