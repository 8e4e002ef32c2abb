from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headway.errors import InvalidConfig
from headway.server.connection import MAX_HEADER_BYTES
from headway.server.listen import bind, listening
from headway.server.settings import ServerSettings
from server.fake_engine import HANG, FakeEngine, delta
from server.serving import MODEL, TIMEOUT_S, abandoned_request, serving

SCRIPT = Path(__file__).parent / "serve_fake.py"


@contextlib.contextmanager
def server_process(
    kind: str, end_within_s: float = TIMEOUT_S
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A serving process and its first line; it is killed at the end if it still runs."""
    command = [sys.executable, str(SCRIPT), kind, str(end_within_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def url_in(line: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found is not None, line
    return found[0]


def test_a_busy_port_is_an_error_that_names_the_option_and_the_address() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=rf"127\.0\.0\.1:{port} .*--port") as raised:
            bind("127.0.0.1", port)
    assert raised.value.field == "port"


def test_a_port_is_free_again_right_after_a_server_on_it() -> None:
    with bind("127.0.0.1", 0) as server:
        server.listen()
        address = server.getsockname()
        with socket.create_connection(address, TIMEOUT_S):
            server.accept()[0].close()
    bind(*address).close()


@pytest.mark.parametrize(
    ("host", "port", "field"),
    [
        ("no such host", 8000, "host"),
        ("a" * 70, 8000, "host"),
        ("127.0.0.1", 65_536, "port"),
        ("127.0.0.1", -1, "port"),
    ],
)
def test_an_address_that_is_none_is_an_error(host: str, port: int, field: str) -> None:
    with pytest.raises(InvalidConfig, match=host if field == "host" else str(port)) as raised:
        bind(host, port)
    assert raised.value.field == field


def test_a_unix_socket_is_served_and_gone_afterwards(tmp_path: Path, engine: FakeEngine) -> None:
    path = str(tmp_path / "socket")
    with serving(engine, engine.model, ServerSettings(uds=path)):
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://here", timeout=TIMEOUT_S) as client:
            assert client.get("/health").status_code == 200
        taken = ServerSettings(uds=path)
        with pytest.raises(InvalidConfig, match=f"uds: a server listens on {path}"):
            listening(taken).__enter__()
    assert not Path(path).exists()


def test_a_unix_socket_that_was_left_behind_is_taken_over_and_no_other_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listening(ServerSettings(uds=str(path))):
        assert path.is_socket()
    path.write_text("precious")
    with pytest.raises(InvalidConfig, match=r"uds: .* is no socket"):
        listening(ServerSettings(uds=str(path))).__enter__()
    assert path.read_text() == "precious"
    missing = ServerSettings(uds=str(tmp_path / "no" / "socket"))
    with pytest.raises(InvalidConfig, match="uds: cannot listen on"):
        listening(missing).__enter__()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https_is_served_under_a_root_path(tmp_path: Path, engine: FakeEngine) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    settings = ServerSettings(port=0, root_path="/llm", **files)
    trusted = ssl.create_default_context(cafile=certificate)
    with serving(engine, engine.model, settings) as url:
        assert url.startswith("https://127.0.0.1:")
        assert url.endswith("/llm")
        # A proxy takes the root path off.
        base = url.removesuffix("/llm")
        with httpx.Client(verify=trusted, base_url=base, timeout=TIMEOUT_S) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/v1/completions", json={"prompt": "hello"}).status_code == 200
            assert client.get("/v1/messages").json()["type"] == "error", "Anthropic's shape"
    key.write_text("no key")
    with pytest.raises(InvalidConfig, match=f"ssl_certfile: {certificate} with {key}"):
        listening(settings).__enter__()


def test_clients_that_connect_and_say_nothing_hold_up_nobody_and_are_sent_away(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.connection.REQUEST_WITHIN_S", 1.0)
    with serving(engine, engine.model) as url, contextlib.ExitStack() as clients:
        address = url.removeprefix("http://").split(":")
        silent = [
            clients.enter_context(socket.create_connection(address, TIMEOUT_S)) for _ in range(200)
        ]
        for client in silent[::2]:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        body = {"prompt": "hello"}
        response = httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S)
        assert response.status_code == 200
        for client in silent:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_headers_of_any_length_are_refused(engine: FakeEngine) -> None:
    with serving(engine, engine.model) as url:
        address = url.removeprefix("http://").split(":")
        with socket.create_connection(address, TIMEOUT_S) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nX: " + b"x" * (MAX_HEADER_BYTES + 1))
            assert client.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_does_not_read_ends_its_request(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.connection.TAKES_WITHIN_S", 0.2)
    engine.script = lambda request: [*[delta("a" * 65_536)] * 500, HANG]
    with (
        serving(engine, engine.model) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as client,
        abandoned_request(client, {"prompt": "hello", "stream": True}),
    ):
        request = engine.added.get(timeout=TIMEOUT_S)
        assert engine.aborted.get(timeout=TIMEOUT_S) == request.request_id
        assert client.get("/health").status_code == 200


def test_a_request_that_hangs_is_ended_with_the_server() -> None:
    with server_process("fake") as (process, line):
        assert MODEL in line
        body = {"prompt": "hello", "stream": True}
        url = f"{url_in(line)}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as response:
            lines = (line for line in response.iter_lines() if line)
            assert '"text":"a"' in next(lines)
            process.send_signal(signal.SIGTERM)
            assert '"code":"engine_dead"' in next(lines)
            assert next(lines, None) is None
        assert process.wait(TIMEOUT_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "returned\n"


def test_an_engine_that_does_not_end_cannot_hold_the_process() -> None:
    with server_process("stuck", end_within_s=0.3) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM


def test_a_second_signal_ends_the_process_at_once() -> None:
    with server_process("stuck") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGINT
