"""Memory of the server's own process, through which bodies of megabytes come and go."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["return_memory"]


def return_memory() -> None:
    """Gives what is free back to the system; for the process's owner to call, 2 to 3 ms.

    An error and its frames are a cycle that holds the body they refuse, until the collector comes.
    And glibc keeps what is free below any small object that stays; other C libraries are left to
    themselves.
    """
    gc.collect()
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)
