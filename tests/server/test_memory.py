"""Memory of the server's own process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from headway.server.memory import return_memory

FREES_ALL_BUT_THE_LAST = r"""
import re
from headway.server.memory import return_memory

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
return_memory()
print(kept, taken() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
def test_what_is_free_goes_back_to_the_system() -> None:
    command = [sys.executable, "-c", FREES_ALL_BUT_THE_LAST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kept, left = map(int, done.stdout.split())
    assert kept > 50e6
    assert left < 5e6


def test_another_c_library_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    return_memory()
