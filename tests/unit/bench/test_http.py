"""The client against servers on loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headway.bench.http import Answer, HttpClient
from headway.errors import InvalidConfig
from scripted_server import Asked, Piece, Reply, ScriptedServer, free_url, listening
from virtual_loop import run_virtually


def against(
    answer: Callable[[Asked], Reply], work: Callable[[HttpClient, ScriptedServer], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with ScriptedServer(answer).serving() as server:
            client = HttpClient(server.url + "/base/", headers={"X-Key": "k"})
            try:
                await work(client, server)
            finally:
                client.close()

    run_virtually(run())


def test_pieces_come_with_their_moments() -> None:
    async def work(client: HttpClient, server: ScriptedServer) -> None:
        heard: list[tuple[bytes, float]] = []
        answer = await client.exchange(
            "POST", "/v1/x", b'{"a": 1}', lambda data, now: heard.append((data, now))
        )
        assert answer == Answer(200, b"")
        assert [data for data, _ in heard] == [b"one", b"two"]
        assert [now for _, now in heard] == pytest.approx([0.25, 1.0])
        [asked] = server.asked
        assert (asked.method, asked.path, asked.body) == ("POST", "/base/v1/x", {"a": 1})
        assert asked.headers["x-key"] == "k"
        assert asked.headers["host"] == server.url.removeprefix("http://")

    against(lambda _: Reply((Piece(0.25, b"one"), Piece(0.75, b"two"))), work)


def test_connections_are_used_again_and_there_are_as_many_as_exchanges_at_once() -> None:
    async def work(client: HttpClient, server: ScriptedServer) -> None:
        await client.exchange("GET", "/1")
        await client.exchange("GET", "/2")
        await asyncio.gather(client.exchange("GET", "/3"), client.exchange("GET", "/4"))
        assert [asked.connection for asked in server.asked] == [1, 1, 1, 2]

    against(lambda _: Reply((Piece(0.1, b"x"),)), work)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    async def work(client: HttpClient, server: ScriptedServer) -> None:
        await client.exchange("GET", "/1")
        # The server closes once it has answered; the client may or may not know by now.
        assert (await client.exchange("GET", "/2")).status == 200
        await asyncio.sleep(1)
        assert (await client.exchange("GET", "/3")).status == 200
        assert [asked.connection for asked in server.asked] == [1, 2, 3]

    async def run() -> None:
        scripted = ScriptedServer(lambda _: Reply(body={}))

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            scripted._connections += 1
            await scripted.read(reader, scripted._connections)
            await scripted.reply(Reply(body={}), writer)

        async with listening(once) as url:
            await work(HttpClient(url, headers={}), scripted)

    run_virtually(run())


def test_the_body_of_an_error_is_not_streamed() -> None:
    async def work(client: HttpClient, server: ScriptedServer) -> None:
        heard: list[bytes] = []
        answer = await client.exchange("GET", "/", b"", lambda data, _: heard.append(data))
        assert answer == Answer(500, b'{"error": "x"}')
        assert not heard

    against(lambda _: Reply(status=500, body={"error": "x"}), work)


@pytest.mark.parametrize("data", [b"half", b""])
def test_an_answer_that_is_cut_off_is_an_error(data: bytes) -> None:
    async def work(client: HttpClient, server: ScriptedServer) -> None:
        with pytest.raises(OSError, match=r"closed|incomplete|without sending"):
            await client.exchange("GET", "/")

    against(lambda _: Reply((Piece(0.5, data, cut=True),)), work)


def test_what_is_no_http_is_an_error_and_a_body_until_the_end_is_not() -> None:
    async def with_bytes(sent: bytes) -> Answer:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)

        async with listening(serve) as url:
            return await HttpClient(url, headers={}).exchange("GET", "/")

    with pytest.raises(OSError, match="no valid HTTP"):
        run_virtually(with_bytes(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))
    answer = run_virtually(with_bytes(b"HTTP/1.0 200 OK\r\n\r\nall of it"))
    assert answer == Answer(200, b"all of it")


def test_nobody_there() -> None:
    async def work() -> None:
        with pytest.raises(ConnectionRefusedError):
            await HttpClient(await free_url(), headers={}).exchange("GET", "/")

    run_virtually(work())


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://x:port", "//x"]
)
def test_what_is_no_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^base_url: must be like http://host:8000"):
        HttpClient(url, headers={})
