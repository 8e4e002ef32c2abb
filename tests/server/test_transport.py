"""Bodies that do not come, and those that are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message

from headway.server.errors import ApiError
from headway.server.transport import BodyRoom, read_body


def test_bodies_take_room_until_their_answers_end() -> None:
    async def read(size: int, take: Callable[[int], None]) -> bytes:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"a" * size}

        return await read_body({"headers": []}, receive, 100, take=take)

    async def check() -> None:
        room = BodyRoom(10)
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
