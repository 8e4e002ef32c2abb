"""Bodies that do not come."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from headway.server.errors import ApiError
from headway.server.transport import read_body


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
