from __future__ import annotations

import asyncio

import pytest

from headway.engine.outputs import OutputDelta
from headway.engine.streams import MAX_UNREAD_TOKENS, RequestStream, Streams
from headway.errors import EngineDead, InvalidRequest


def delta(request_id: str, *tokens: int, finish: str | None = None) -> OutputDelta:
    return OutputDelta(request_id, "x" * len(tokens), tokens, finish)


async def rest(stream: RequestStream) -> list[OutputDelta]:
    return [delta async for delta in stream]


def test_a_stream_gives_what_was_delivered_before_and_after_it_was_asked() -> None:
    async def check() -> None:
        streams = Streams([].append)
        one, two = streams.open(["one", "two"])
        streams.deliver([delta("one", 1), delta("two", 2)])
        reading = asyncio.create_task(rest(one))
        await asyncio.sleep(0)
        streams.deliver([delta("one", 3, finish="stop"), delta("nobody", 4)])
        assert [each.token_ids for each in await reading] == [(1,), (3,)]
        assert (await anext(two)).token_ids == (2,)

    asyncio.run(check())


def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    async def check() -> None:
        streams = Streams([].append)
        (one,) = streams.open(["one"])
        reading = asyncio.create_task(anext(one))
        await asyncio.sleep(0)
        streams.deliver([delta("one", 1)])
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert (await anext(one)).token_ids == (1,)

    asyncio.run(check())


def test_an_aborted_stream_ends_at_once_and_its_id_is_free_when_the_engine_has_said_so() -> None:
    async def check() -> None:
        aborted: list[str] = []
        streams = Streams(aborted.append)
        (one,) = streams.open(["one"])
        one.abort()
        one.abort()
        assert aborted == ["one"]
        streams.deliver([delta("one", 1)])
        assert [each.finish_reason for each in await rest(one)] == ["abort"]
        with pytest.raises(InvalidRequest, match="'one' is in use"):
            streams.open(["new", "one"])
        streams.deliver([delta("one", finish="stop")])
        new, again = streams.open(["new", "one"])
        streams.deliver([delta("one", 2, finish="stop")])
        assert [each.token_ids for each in await rest(again)] == [(2,)]
        streams.forget([new])
        streams.open(["new"])

    asyncio.run(check())


def test_an_ended_stream_is_not_aborted() -> None:
    async def check() -> None:
        aborted: list[str] = []
        streams = Streams(aborted.append)
        (one,) = streams.open(["one"])
        streams.deliver([delta("one", 1, finish="length")])
        one.abort()
        streams.abort_all()
        assert aborted == []
        assert [each.finish_reason for each in await rest(one)] == ["length"]

    asyncio.run(check())


def test_what_nobody_reads_is_bounded_and_its_request_ended() -> None:
    async def check() -> None:
        aborted: list[str] = []
        streams = Streams(aborted.append)
        slow, fast = streams.open(["slow", "fast"])
        for token in range(2 * MAX_UNREAD_TOKENS):
            streams.deliver([delta("slow", token), delta("fast", token)])
            assert (await anext(fast)).token_ids == (token,)
        assert aborted == ["slow"]
        *read, last = await rest(slow)
        assert len(read) == MAX_UNREAD_TOKENS + 1
        assert last.finish_reason == "error"
        assert "too slowly" in str(last.error)

    asyncio.run(check())


def test_a_lost_engine_is_told_after_what_came_before() -> None:
    async def check() -> None:
        streams = Streams([].append)
        one, ended = streams.open(["one", "ended"])
        streams.deliver([delta("one", 1), delta("ended", 2, finish="stop")])
        waiting = asyncio.create_task(rest(one))
        await asyncio.sleep(0)
        streams.fail_all(EngineDead("gone"))
        with pytest.raises(EngineDead, match="gone"):
            await waiting
        assert len(await rest(ended)) == 1
        streams.open(["one"])

    asyncio.run(check())
