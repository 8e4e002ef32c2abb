"""Memory of the server's own process, through which bodies of megabytes come and go."""

from __future__ import annotations

import ctypes

__all__ = ["return_large_buffers"]

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 128 * 1024
"""What glibc begins with."""


def return_large_buffers() -> None:
    """Has glibc give back to the system what a large buffer took, as soon as it is freed.

    By itself it comes to put buffers of up to 32 MiB between small ones, once it has seen such
    freed (mallopt(3), M_MMAP_THRESHOLD); then one small object that stays keeps all that was freed
    below it: 60 MiB and more of a second's bad bodies. Does nothing with another C library.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
