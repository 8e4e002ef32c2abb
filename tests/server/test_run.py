from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headway.errors import InvalidConfig
from headway.server.run import bind
from server.serving import MODEL, TIMEOUT_S

SCRIPT = Path(__file__).parent / "serve_fake.py"


@contextlib.contextmanager
def server_process(kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A serving process and its first line; it is killed at the end if it still runs."""
    command = [sys.executable, str(SCRIPT), kind]
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
        with socket.create_connection(address):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_open_streams_and_the_process(number: signal.Signals) -> None:
    with server_process("fake") as (process, line):
        assert MODEL in line
        body = {"prompt": "hello", "stream": True}
        url = f"{url_in(line)}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as response:
            lines = (line for line in response.iter_lines() if line)
            assert '"text":"a"' in next(lines)
            sent = time.monotonic()
            process.send_signal(number)
            assert '"code":"engine_dead"' in next(lines)
            assert next(lines, None) is None
        assert process.wait(TIMEOUT_S) == 0
        assert time.monotonic() - sent < 2.0
        assert process.stdout is not None
        assert process.stdout.read() == "returned\n"


def test_a_step_that_does_not_end_cannot_hold_the_process() -> None:
    with server_process("stuck") as (process, _):
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        assert time.monotonic() - sent < 2.0


def test_a_second_signal_ends_the_process_at_once() -> None:
    with server_process("stuck") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGINT
        assert time.monotonic() - sent < 1.0
