"""Threads for what a request's text costs, so that the event loop, and other requests, go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headway.errors import QueueFull

__all__ = ["Workers"]

T = TypeVar("T")

_SHORT_BYTES = 8 << 10
"""Up to here the work takes less than handing it over."""
_LONG_BYTES = 256 << 10
"""From here on it takes long enough to have others wait: such bodies queue among themselves."""
_MAX_WAITING = 256


class Workers:
    """Reads and tokenises bodies. The backend's tokenising holds no lock, so the threads of the
    longest bodies take a core each from the model at most."""

    def __init__(self) -> None:
        self._medium = ThreadPoolExecutor(2, "headway-text")
        self._long = ThreadPoolExecutor(2, "headway-long-text")
        self._num_waiting = 0

    async def run(self, num_bytes: int, work: Callable[[], T]) -> T:
        """What `work`, for a body of that size, returns or raises.

        Raises `QueueFull` where too much is waiting. Cancelled, it does not begin, or its result
        is dropped.
        """
        if num_bytes <= _SHORT_BYTES:
            return work()
        if self._num_waiting >= _MAX_WAITING:
            raise QueueFull(f"{self._num_waiting} prompts wait to be tokenised", 1.0)
        pool = self._medium if num_bytes < _LONG_BYTES else self._long
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            self._num_waiting -= 1
