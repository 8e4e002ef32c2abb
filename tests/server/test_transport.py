"""Bodies that do not come, and those that are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message

from headway.server.errors import ApiError
from headway.server.transport import BodyRoom, read_body
from virtual_loop import run_virtually


def test_bodies_take_room_until_their_answers_end() -> None:
    async def read(size: int, take: Callable[[int], None]) -> bytes:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"a" * size}

        return await read_body({"headers": []}, receive, 100, take=take)

    async def check() -> None:
        room = BodyRoom(10, tidy=never)
        with room.hold() as take:
            assert await read(7, take) == b"a" * 7
            with room.hold() as other, pytest.raises(ApiError) as raised:
                await read(4, other)
            assert (raised.value.status, raised.value.code) == (429, "bodies_full")
            assert raised.value.headers["Retry-After"] == "1"
            with room.hold() as other:
                assert await read(3, other) == b"aaa"
        with room.hold() as take:
            assert await read(10, take) == b"a" * 10

    asyncio.run(check())


def never() -> None:
    raise AssertionError


def test_some_time_after_large_bodies_it_is_tidied_up_once() -> None:
    times: list[float] = []

    async def check() -> None:
        loop = asyncio.get_running_loop()
        room = BodyRoom(2**20, lambda: times.append(loop.time()))

        async def answer(num_bytes: int) -> None:
            with room.hold() as take:
                take(num_bytes)
                await asyncio.sleep(3)

        await answer(2**17 - 1)
        await asyncio.sleep(10)
        assert times == []
        began_s = loop.time()
        await asyncio.gather(answer(2**17), answer(2**18))
        await asyncio.sleep(10)
        assert times == [pytest.approx(began_s + 4)]
        await answer(2**17)
        await asyncio.sleep(10)
        assert len(times) == 2

    run_virtually(check())


def test_a_body_that_stops_half_way_is_given_up() -> None:
    parts: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    with pytest.raises(ApiError, match=r"within 0\.01 s") as raised:
        asyncio.run(read_body({"headers": []}, receive, 100, within_s=0.01))
    assert raised.value.status == 408
    assert raised.value.headers == {"Connection": "close"}
