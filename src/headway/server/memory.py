"""Memory that is free goes back to the system: in the server's process, through which bodies of
megabytes come and go, and in the engine's, where each step has tensors of its own.

These are settings of the whole process, for its owner, and of glibc; other C libraries are left to
themselves.
"""

from __future__ import annotations

import ctypes
import gc

__all__ = ["drop_errors", "hold_less_memory", "return_memory", "share_one_arena"]

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BYTES = 128 * 1024
"""What glibc begins with."""


def hold_less_memory() -> None:
    """Has glibc go on as it begins: buffers of 128 KiB have pages of their own, and what is free at
    an arena's end goes back.

    By itself it raises both bounds by the largest buffer that it sees freed, up to 32 and 64 MiB
    (mallopt(3), M_MMAP_THRESHOLD); then each thread that reads texts comes to hold so much.

    Not for an engine: fresh pages for every tensor cost PyTorch's own operators a quarter of their
    speed.
    """
    _set(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def share_one_arena() -> None:
    """Has all threads allocate from the process's heap; to be called while there is but one.

    `return_memory` leaves what is free at the end of a thread's own arena, up to 64 MiB each.
    """
    _set(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Gives what is free back to the system, in 3 to 5 ms: glibc keeps what is free below any small
    object that stays."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)


def drop_errors() -> None:
    """Gives back what errors hold too: one and its frames are a cycle, with the body that they
    refuse, until the collector comes.

    For a process with little to look at: the collector goes through a full KV cache's blocks, 28 ms
    for 50,000.
    """
    gc.collect()
    return_memory()


def _set(parameter: int, value: int) -> None:
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(parameter, value)
