"""A small HTTP server that says what a script tells it, when it tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    at_s: float
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Piece:
    """Sent `after_s` the one before; an object goes as an event, bytes as they are."""

    after_s: float
    data: object
    cut: bool = False
    """The connection is broken off after it."""


@dataclass(frozen=True)
class Reply:
    pieces: tuple[Piece, ...] = ()
    status: int = 200
    body: object = None
    """Of a whole answer, in place of pieces."""


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    """Yields the URL; a connection is closed as its handler returns, and all are at the end."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def free_url() -> str:
    """Where nobody listens."""
    async with listening(lambda *_: asyncio.sleep(0)) as url:
        return url


@dataclass
class ScriptedServer:
    answer: Callable[[Asked], Reply]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    _connections: int = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedServer]:
        async with listening(self._serve) as self.url:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                asked = await self.read(reader, number)
                if not await self.reply(self.answer(asked), writer):
                    break

    async def read(self, reader: asyncio.StreamReader, number: int) -> Asked:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        method, path, _ = head[0].split()
        now = asyncio.get_running_loop().time()
        asked = Asked(now, number, method, path, headers, json.loads(body) if body else None)
        self.asked.append(asked)
        return asked

    async def reply(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.status != 200 or reply.body is not None:
            body = json.dumps(reply.body).encode()
            head = f"HTTP/1.1 {reply.status} X\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            return True
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        for piece in reply.pieces:
            await asyncio.sleep(piece.after_s)
            data = piece.data
            if not isinstance(data, bytes):
                text = data if isinstance(data, str) else json.dumps(data)
                data = f"data: {text}\n\n".encode()
            if data:  # a chunk of nothing is the end
                writer.write(head + b"%x\r\n%b\r\n" % (len(data), data))
                head = b""
            if piece.cut:
                return False
        writer.write(b"0\r\n\r\n")
        return True


def token(text: str = " x", finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": found}


def completion(first_s: float, gaps_s: list[float], *, prompt: int, extra: int = 0) -> Reply:
    """A token after `first_s`, then one after each gap; the usage tells `extra` ones more."""
    count = 1 + len(gaps_s)
    times = [first_s, *gaps_s]
    tokens = [
        Piece(after, token(finish="length" if i == count - 1 else None))
        for i, after in enumerate(times)
    ]
    return Reply((*tokens, Piece(0, usage(prompt, count + extra)), Piece(0, "[DONE]")))


MODELS = Reply(body={"object": "list", "data": [{"id": "the-model"}]})
