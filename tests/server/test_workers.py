from __future__ import annotations

import asyncio
import threading

import pytest

from headway.errors import QueueFull
from headway.server.workers import Workers

SHORT, MEDIUM, LONG = 100, 100_000, 10_000_000


def test_short_work_is_done_at_once_and_long_work_elsewhere() -> None:
    async def where(num_bytes: int) -> threading.Thread:
        return await Workers().run(num_bytes, threading.current_thread)

    assert asyncio.run(where(SHORT)) is threading.current_thread()
    for num_bytes in (MEDIUM, LONG):
        assert asyncio.run(where(num_bytes)) is not threading.current_thread()


def test_what_is_raised_comes_back() -> None:
    def fail() -> None:
        raise KeyError("a")

    for num_bytes in (SHORT, MEDIUM, LONG):
        with pytest.raises(KeyError):
            asyncio.run(Workers().run(num_bytes, fail))


def test_others_do_not_wait_for_the_longest() -> None:
    async def main() -> None:
        workers, release = Workers(), threading.Event()
        stuck = [asyncio.create_task(workers.run(LONG, release.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        assert await workers.run(MEDIUM, lambda: "done") == "done"
        assert not any(task.done() for task in stuck)
        release.set()
        assert all(await asyncio.gather(*stuck))

    asyncio.run(main())


def test_what_waits_is_bounded_and_what_is_cancelled_waits_no_longer() -> None:
    async def main() -> None:
        workers, release = Workers(), threading.Event()
        stuck = [asyncio.create_task(workers.run(LONG, release.wait)) for _ in range(256)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="256 prompts wait"):
            await workers.run(LONG, lambda: None)
        assert await workers.run(SHORT, lambda: "done") == "done"
        stuck[-1].cancel()
        await asyncio.gather(stuck[-1], return_exceptions=True)
        began = asyncio.create_task(workers.run(MEDIUM, lambda: "done"))
        assert await began == "done"
        release.set()
        await asyncio.gather(*stuck[:-1])

    asyncio.run(main())
