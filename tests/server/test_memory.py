"""Memory of the server's own process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from headway.server.process.memory import return_large_buffers

FREES_A_LARGE_BUFFER_THEN_TAKES_ONE = """
import ctypes
from headway.server.process.memory import return_large_buffers

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2

def taken():
    before = mallinfo2().hblkhd
    buffer = bytes(2**20)
    return mallinfo2().hblkhd - before

{first}
bytes(2**24)
print(taken())
"""


def pages_of_its_own(first: str) -> int:
    """Bytes that a buffer of a MiB has for itself, after one of 16 MiB was freed."""
    script = FREES_A_LARGE_BUFFER_THEN_TAKES_ONE.format(first=first)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc of 2.33 or newer")
def test_a_large_buffer_has_pages_of_its_own_also_after_a_larger_one_was_freed() -> None:
    assert pages_of_its_own("") == 0
    assert pages_of_its_own("return_large_buffers()") >= 2**20


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    return_large_buffers()
