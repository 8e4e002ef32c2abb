"""Starts `headway serve` for a measurement, and ends it, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from headway.errors import HeadwayError

__all__ = ["Launch", "launched", "started"]

Launch: TypeAlias = Callable[[Sequence[str]], AbstractAsyncContextManager[str]]
"""Takes options of `headway serve`; gives the URL of a server that is ready, which is gone when
the context ends. Raises HeadwayError with what the server said last where it does not start."""

_READY_WITHIN_S = 600.0
"""It may fetch a model first."""
_ENDED_WITHIN_S = 10.0
_LINES_TOLD = 12
_LONGEST_LINE = 1 << 20
"""Bytes; a longer one ends the reading, and would stop a server that goes on writing."""
_SERVING = re.compile(rb"Serving .* at (https?://[^/\s]+)")
"""`headway serve` prints it to standard output once `/ready` is 200, and nothing before it."""


@asynccontextmanager
async def launched(options: Sequence[str]) -> AsyncIterator[str]:
    """`headway serve` on any free port of 127.0.0.1. No key of ours is asked for there."""
    command = (sys.executable, "-m", "headway", "serve", *options)
    environment = {key: value for key, value in os.environ.items() if key != "HEADWAY_API_KEY"}
    async with started(
        (*command, "--host", "127.0.0.1", "--port", "0"), environment=environment
    ) as url:
        yield url


@asynccontextmanager
async def started(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    ended_within_s: float = _ENDED_WITHIN_S,
) -> AsyncIterator[str]:
    """The URL of what the command serves. It is in a process group of its own: Ctrl-C in the
    terminal reaches the one who measures alone, who then ends the server."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
        env=environment,
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=_LINES_TOLD)
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(_keep(process.stderr, last))
    try:
        yield await _url(process.stdout, reading, last)
    finally:
        try:
            await _end(process, ended_within_s)
        finally:
            reading.cancel()


async def _url(
    stdout: asyncio.StreamReader, reading: asyncio.Task[None], last: Sequence[str]
) -> str:
    try:
        async with asyncio.timeout(_READY_WITHIN_S):
            line = await stdout.readline()
            if not line:
                await reading  # its last words
    except TimeoutError:
        raise HeadwayError(
            f"the server was not ready after {_READY_WITHIN_S:.0f} s{_told(last)}"
        ) from None
    found = _SERVING.search(line)
    if found is None:
        raise HeadwayError(f"the server did not start{_told(last)}")
    return found[1].decode()


def _told(last: Sequence[str]) -> str:
    return "".join(f"\n  {line}" for line in last) or "; it said nothing"


async def _keep(stream: asyncio.StreamReader, last: deque[str]) -> None:
    """Reads to the end, so that the server never waits for a reader."""
    while line := await stream.readline():
        last.append(line.decode(errors="replace").rstrip())


async def _end(process: asyncio.subprocess.Process, within_s: float) -> None:
    """SIGTERM, then SIGKILL for the whole group. The engine's process ends with the server's."""
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), within_s)
    finally:  # also where waiting is cancelled
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
