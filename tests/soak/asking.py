"""Requests of a mixed load, good ones and bad, and clients that behave and that do not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from headway.bench.http import HttpClient
from server.bad_chats import CHATS
from server.bad_input import ROWS
from server.bad_items import ITEMS
from soak.flaws import flaw

__all__ = [
    "CANARY",
    "VOCABULARY",
    "Ask",
    "Ending",
    "ask",
    "bad_ask",
    "good_ask",
    "leave",
    "say_nothing",
]

VOCABULARY = 49_152
_WORDS = ("the", "river", "runs", "under", "old", "trees", "and", "nobody", "knows", "where")
_SYSTEM = "You are a patient assistant who answers in one short sentence. "
_TOO_MANY = (429, 503, 529)
"""Statuses by which a server that is full refuses what it would else take."""


@dataclass(frozen=True)
class Ask:
    """One request."""

    path: str
    body: bytes
    statuses: Sequence[int] = (200,)
    """What it may be answered with, beside `_TOO_MANY`."""
    stream: bool = False
    num_choices: int | None = 1
    """None: the answer is not looked into."""
    text: str | None = None
    """What a completion must be."""
    method: str = "POST"

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body[:200].decode(errors='replace')}"


@dataclass(frozen=True)
class Ending:
    """What came of a request, in a word, with what is wrong about it, if anything is."""

    word: str
    problem: str | None = None


CANARY = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 12, "seed": 1}
"""A completion whose answer must be the same whatever else is served."""


def good_ask(rng: Random) -> Ask:
    """Of one of many kinds; lengths are skewed, as people's are."""
    stream = rng.random() < 0.6
    limit = 1 + int(rng.expovariate(1 / 24)) % 160
    words = " ".join(rng.choices(_WORDS, k=1 + int(rng.expovariate(1 / 40)) % 400))
    path = rng.choice((*(["/v1/completions"] * 6), *(["/v1/chat/completions"] * 3), *_OTHERS))
    messages = [{"role": "user", "content": words}]
    n = 1
    body: dict[str, Any] = {"stream": stream, "temperature": rng.choice((0, 0.7, 1.0))}
    if path == "/v1/responses":
        body |= {"input": words, "instructions": _SYSTEM, "max_output_tokens": limit}
    elif path == "/v1/messages":
        body |= {"messages": messages, "system": _SYSTEM, "max_tokens": limit}
    else:
        body |= {"max_tokens": limit, **_sampling(rng)}
        if rng.random() < 0.2:
            n = 2
            body |= {"n": n, "temperature": 0.8}
        if path == "/v1/chat/completions":
            body["messages"] = [{"role": "system", "content": _SYSTEM}, *messages]
        elif rng.random() < 0.3:
            body["prompt"] = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 300))]
        else:
            body["prompt"] = _SYSTEM * rng.randrange(4) + words
    return Ask(path, json.dumps(body).encode(), stream=stream, num_choices=n)


_OTHERS = ("/v1/responses", "/v1/messages")


def _sampling(rng: Random) -> dict[str, Any]:
    """Options of a completion. Some constraints are new each time, so that they are compiled."""
    return rng.choice(
        (
            {},
            {},
            {"top_p": 0.9, "seed": 7},
            {"top_k": 40, "frequency_penalty": 0.5},
            {"stop": ["river", "\n"]},
            {"repetition_penalty": 1.1, "min_tokens": 1},
            {"ignore_eos": True},
            {"logit_bias": {"42": -100}, "presence_penalty": 0.3},
            {"structured_outputs": {"regex": f"[a-d]{{{rng.randrange(1, 40)}}}-{rng.random()}"}},
            {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
            {"response_format": {"type": "json_object"}},
        )
    )


def _exactly(status: int, body: object, path: str = "/v1/completions", method: str = "POST") -> Ask:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Ask(path, content, (status,), num_choices=None, method=method)


_PLAIN = (
    _exactly(400, b""),
    _exactly(400, b"\xff\xfe"),
    _exactly(400, b"[" * 50_000),
    _exactly(400, {"prompt": [VOCABULARY + 1000]}),
    _exactly(400, {"prompt": [7] * 9000}),
    _exactly(404, {}, "/v1/nothing"),
    _exactly(405, {}, "/v1/models"),
    _exactly(405, b"", method="GET"),
)
"""With this model, and at the level of HTTP."""

_MOST_BYTES = 2**21
_TABLE = [row for row in (*ROWS, *CHATS, *ITEMS) if not callable(row.sent)] + [
    row for row in (*ROWS, *CHATS, *ITEMS) if callable(row.sent) and len(row.body()) <= _MOST_BYTES
]
_SOME_ANSWER = (200, *range(400, 430))
"""What the table's rows come to with another model than theirs."""


def bad_ask(rng: Random) -> Ask:
    """A row of the table of bad input, or one of our own."""
    if rng.random() < 0.2:
        return rng.choice(_PLAIN)
    row = rng.choice(_TABLE)
    return Ask(row.path, row.body(), _SOME_ANSWER, num_choices=None)


async def ask(client: HttpClient, request: Ask) -> Ending:
    """Asks, and reads the whole answer."""
    events = bytearray()
    try:
        answer = await client.exchange(
            request.method,
            request.path,
            request.body,
            (lambda data, _: events.extend(data)) if request.stream else None,
        )
    except OSError as error:
        return Ending("broken", f"{request}: {error}")
    if answer.status in _TOO_MANY:
        return Ending("rejected")
    if answer.status not in request.statuses:
        said = answer.body[:300].decode(errors="replace")
        return Ending("wrong", f"{request}: {answer.status} {said}")
    if answer.status != 200:
        return Ending("refused")
    problem = None
    if request.num_choices is not None:
        body = bytes(events) if request.stream else answer.body
        problem = flaw(
            request.path, body, request.num_choices, stream=request.stream, text=request.text
        )
    return Ending("answered", problem and f"{request}: {problem}")


_STAGES = ("head", "body", "at once", "waiting", "reading", "stalled")


async def leave(url: str, request: Ask, rng: Random) -> Ending:
    """Asks, and goes away at some stage, politely or not."""
    parts = urlsplit(url)
    head = (
        f"{request.method} {request.path} HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n\r\n"
    ).encode()
    whole = head + request.body
    stage = rng.choice(_STAGES)
    ends = {"head": rng.randrange(len(head)), "body": rng.randrange(len(head), len(whole) + 1)}
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except OSError as error:
        return Ending("broken", f"cannot connect: {error}")
    try:
        with contextlib.suppress(OSError):  # the server may refuse it and go away first
            writer.write(whole[: ends.get(stage, len(whole))])
            await writer.drain()
            if stage == "waiting":  # neither of these two reads what is sent to it
                await asyncio.sleep(rng.random() * 0.5)
            elif stage == "stalled":
                await asyncio.sleep(rng.random() * 3)
            elif stage == "reading":
                for _ in range(rng.randrange(1, 12)):
                    await reader.readline()
    finally:
        if rng.random() < 0.5:  # a reset instead of an orderly end
            made = writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return Ending("left")


@contextlib.asynccontextmanager
async def say_nothing(url: str, count: int) -> AsyncIterator[None]:
    """So many clients that connect, of which each third says nothing, begins a head, or a body."""
    parts = urlsplit(url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"
    beginnings = (b"", head[:13], head + b"{")
    writers = []
    try:
        for index in range(count):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writers.append(writer)
            writer.write(beginnings[index % len(beginnings)])
        yield
    finally:
        for writer in writers:
            writer.close()
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
