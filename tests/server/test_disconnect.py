from __future__ import annotations

import socket

import httpx
import pytest

from server.fake_engine import HANG, FakeEngine, delta
from server.serving import TIMEOUT_S, abandoned_request


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [[HANG], [delta("a"), HANG]])
def test_a_client_that_goes_away_ends_its_request(
    client: httpx.Client, engine: FakeEngine, stream: bool, script: list[object]
) -> None:
    engine.script = lambda request: script
    with abandoned_request(client, {"prompt": "hello", "stream": stream}):
        request = engine.added.get(timeout=TIMEOUT_S)
        assert engine.aborted.empty()
    assert engine.aborted.get(timeout=TIMEOUT_S) == request.request_id


def test_all_prompts_of_a_request_end_with_their_client(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), HANG]
    body = {"prompt": ["a", "b", "c"], "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        added = {engine.added.get(timeout=TIMEOUT_S).request_id for _ in range(3)}
        assert engine.aborted.empty()
    aborted = {engine.aborted.get(timeout=TIMEOUT_S) for _ in range(3)}
    assert aborted == added


def test_an_answered_request_is_not_aborted(client: httpx.Client, engine: FakeEngine) -> None:
    for stream in (False, True):
        client.post("/v1/completions", json={"prompt": "hello", "stream": stream})
    assert engine.added.qsize() == 2
    assert engine.aborted.empty()


def test_a_client_that_goes_away_within_its_body_starts_nothing(
    client: httpx.Client, engine: FakeEngine
) -> None:
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, TIMEOUT_S) as connection:
        connection.sendall(
            b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"prompt":'
        )
    assert client.get("/health").status_code == 200
    assert engine.added.empty()
