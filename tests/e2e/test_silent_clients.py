"""Two hundred clients that connect and say nothing, or no more than a beginning."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from e2e.conftest import Server
from soak.asking import CANARY, say_nothing
from waiting import IN_TIME_S, in_time

NUM_SILENT = 200


def open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def answer(server: Server) -> str:
    response = httpx.post(f"{server.url}/v1/completions", json=CANARY, timeout=IN_TIME_S)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_they_are_in_nobodys_way_and_leave_nothing_behind(server: Server) -> None:
    text = answer(server)
    before = open_files(server)

    async def beside_them() -> None:
        async with say_nothing(server.url, NUM_SILENT):
            assert await asyncio.to_thread(answer, server) == text
            health = await asyncio.to_thread(httpx.get, f"{server.url}/health", timeout=IN_TIME_S)
            assert health.status_code == 200

    asyncio.run(beside_them())
    assert answer(server) == text
    # Those that have gone are noticed one by one.
    assert in_time(lambda: open_files(server) <= before)
    assert answer(server) == text
    assert server.metric("num_requests_running") == 0
