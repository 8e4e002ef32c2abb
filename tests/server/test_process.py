"""Both processes, and what becomes of either when the other is at its worst."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from server.serving import TIMEOUT_S
from server.tiny_child import DIE, HANG
from server.tiny_core import ALPHABET
from waiting import in_time

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="/proc tells the pids")

SCRIPT = Path(__file__).parent / "serve_tiny.py"
PROMPT = ALPHABET[:20]
LONG = {"prompt": PROMPT, "max_tokens": 100}
"""A second, at the tiny engine's pace, and 40 while it is slow."""


@dataclass
class Processes:
    server: subprocess.Popen[str]
    client: httpx.Client

    @property
    def engine_pid(self) -> int | None:
        pid = self.server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def post(self, **body: object) -> httpx.Response:
        return self.client.post("/v1/completions", json=LONG | body)

    @contextlib.contextmanager
    def stream(self, **body: object) -> Iterator[Iterator[str]]:
        """Its events, from the second on: it has begun."""
        body = LONG | {"stream": True} | body
        with self.client.stream("POST", "/v1/completions", json=body) as response:
            events = (line for line in response.iter_lines() if line)
            assert "text" in next(events)
            yield events

    def status(self, path: str) -> int:
        """0: nobody listens."""
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def has(self, *, running: int, waiting: int) -> bool:
        """As of the engine's last step."""
        names = ("num_requests_running", "num_requests_waiting")
        return [self.metric(name) for name in names] == [running, waiting]

    def metric(self, name: str) -> float:
        text = self.client.get("/metrics").text
        line = next(line for line in text.splitlines() if line.startswith(f"headway:{name}{{"))
        return float(line.rpartition(" ")[2])

    def end(self) -> tuple[int, str, str]:
        """Exit code, and what it has said since."""
        out, err = self.server.communicate(timeout=TIMEOUT_S)
        return self.server.returncode, out, err


@contextlib.contextmanager
def processes(*, ready: bool = True, **options: object) -> Iterator[Processes]:
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip().removesuffix("/v1")
            limits = httpx.Limits(max_keepalive_connections=0)
            with httpx.Client(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
                running = Processes(server, client)
                if ready:
                    assert running.line() == "ready", running.end()
                yield running
        finally:
            server.kill()


def is_gone(pid: int) -> bool:
    """It is no process any more, or one that nobody has asked how it ended."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """While there is this file, the engine of the model `slow:PATH` is slow, or loads on."""
    return tmp_path / "slow"


def error_code(text: str) -> str:
    return json.loads(text.removeprefix("data: "))["error"]["code"]


@pytest.mark.parametrize(
    ("number", "within_s", "reason"),
    [
        (signal.SIGKILL, 1.0, "its process has ended (killed by SIGKILL)"),
        (signal.SIGSTOP, 5.0, "has not been heard of for "),
    ],
)
def test_a_dead_or_stopped_engine_is_found_told_to_every_client_and_ends_the_server(
    number: signal.Signals, within_s: float, reason: str, slow: Path
) -> None:
    args = {"model": f"slow:{slow}", "max_num_seqs": 2}
    with processes(args=args, linger_s=TIMEOUT_S) as running, ThreadPoolExecutor(2) as pool:
        assert running.status("/health") == running.status("/ready") == 200
        slow.touch()
        with running.stream() as events:
            whole, waiting = (pool.submit(running.post) for _ in range(2))
            assert in_time(lambda: running.has(running=2, waiting=1))
            assert running.engine_pid is not None
            fault = time.monotonic()
            os.kill(running.engine_pid, number)
            rest = list(events)
            assert error_code(rest[-1]) == "engine_dead"  # and no [DONE]
            for each in (whole, waiting):
                response = each.result(TIMEOUT_S)
                assert (response.status_code, error_code(response.text)) == (503, "engine_dead")
            assert time.monotonic() - fault < within_s
        assert running.line() == "dead"
        assert running.status("/health") == running.status("/ready") == 503
        running.server.send_signal(signal.SIGTERM)  # it would linger for very long here
        code, _, said = running.end()
        assert code == 1
        assert reason in said


def test_a_hung_step_is_found_and_says_where_it_hangs() -> None:
    with processes(settings={"step_timeout": 1.5}) as running:
        # Measured, so that a step is known to take a hundredth of a second.
        assert running.post(max_tokens=2).status_code == 200
        response = running.post(prompt=HANG)
        assert (response.status_code, error_code(response.text)) == (503, "engine_dead")
        code, _, said = running.end()
        assert code == 1
        assert "a step of the engine has taken" in said
        assert "in submit" in said  # of the stack that the engine wrote


def test_another_engine_takes_the_place_of_one_that_died(slow: Path) -> None:
    args = {"model": f"slow:{slow}"}
    with processes(args=args, settings={"restart_engine": True}) as running:
        whole = running.post(temperature=0, max_tokens=9).json()["choices"]
        first = running.engine_pid
        slow.touch()
        with running.stream() as events:
            response = running.post(prompt=DIE)
            assert (response.status_code, error_code(response.text)) == (503, "engine_dead")
            assert int(response.headers["Retry-After"]) > 0
            assert error_code(list(events)[-1]) == "engine_dead"
        assert running.status("/health") == running.status("/ready") == 503
        assert running.has(running=0, waiting=0)
        slow.unlink()
        assert in_time(lambda: running.status("/ready") == 200)
        assert running.status("/health") == 200
        assert running.post(temperature=0, max_tokens=9).json()["choices"] == whole
        assert running.engine_pid != first
        restarts = running.client.get("/metrics").text
        assert 'headway:engine_restarts_total{engine="0",model_name="the-model"} 1.0' in restarts
        running.server.send_signal(signal.SIGTERM)
        code, _, said = running.end()
        assert code == 0
        assert "exit code 3" in said
        assert "another engine has started" in said


def test_an_engine_that_does_not_start_again_ends_the_server(tmp_path: Path) -> None:
    args = {"model": f"once:{tmp_path / 'started'}"}
    with processes(args=args, settings={"restart_engine": True}) as running:
        assert running.post(prompt=DIE).status_code == 503
        code, _, said = running.end()
        assert code == 1
        assert "another does not start: max_model_len: there is no room for it" in said


def test_while_it_loads_it_says_so_and_a_signal_ends_it() -> None:
    with processes(ready=False, args={"model": "never"}) as running:
        assert running.status("/health") == 200
        assert running.status("/ready") == 503
        response = running.post()
        assert (response.status_code, error_code(response.text)) == (503, "loading")
        assert int(response.headers["Retry-After"]) > 0
        assert running.status("/v1/models") == 503
        assert in_time(lambda: running.engine_pid is not None)
        engine = running.engine_pid
        assert engine is not None
        running.server.send_signal(signal.SIGTERM)
        code, out, _ = running.end()
        assert (code, out) == (0, "returned\n")
        assert is_gone(engine)


def test_a_terminated_server_finishes_what_it_has_and_takes_no_more(slow: Path) -> None:
    options = {
        "args": {"model": f"slow:{slow}", "max_num_seqs": 2},
        "settings": {"drain_timeout": TIMEOUT_S},
    }
    with processes(**options) as running, ThreadPoolExecutor(2) as pool:
        slow.touch()
        with running.stream() as events:
            whole, waiting = (pool.submit(running.post) for _ in range(2))
            assert in_time(lambda: running.has(running=2, waiting=1))
            # Ctrl-C in a terminal, or an init system, signals every process: it is for one.
            engine = running.engine_pid
            assert engine is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(engine, number)
            assert os.getpgid(engine) != os.getpgid(running.server.pid)
            running.server.send_signal(signal.SIGTERM)
            assert in_time(lambda: running.status("/ready") == 503)
            running.server.send_signal(signal.SIGTERM)  # again, as some supervisors do
            assert running.status("/health") == 200
            response = running.post()
            assert (response.status_code, error_code(response.text)) == (503, "draining")
            assert int(response.headers["Retry-After"]) > 0
            assert running.status("/v1/models") == 200
            slow.unlink()
            assert list(events)[-1] == "data: [DONE]"
        for each in (whole, waiting):
            choice = each.result(TIMEOUT_S).json()["choices"][0]
            assert (len(choice["text"]), choice["finish_reason"]) == (100, "length")
        code, out, _ = running.end()
        assert (code, out) == (0, "returned\n")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "its process has ended (killed by SIGKILL)"),
        (signal.SIGSTOP, "has not been heard of for "),
    ],
)
def test_an_engine_that_is_lost_while_it_drains_is_told_to_its_clients_and_in_the_exit_code(
    number: signal.Signals, reason: str, slow: Path
) -> None:
    options = {"args": {"model": f"slow:{slow}"}, "settings": {"drain_timeout": TIMEOUT_S}}
    with processes(**options) as running, ThreadPoolExecutor(1) as pool:
        slow.touch()
        with running.stream() as events:
            whole = pool.submit(running.post)
            assert in_time(lambda: running.has(running=2, waiting=0))
            engine = running.engine_pid
            assert engine is not None
            running.server.send_signal(signal.SIGTERM)
            assert in_time(lambda: running.status("/ready") == 503)
            assert running.status("/health") == 200
            os.kill(engine, number)
            assert error_code(list(events)[-1]) == "engine_dead"  # and no [DONE]
            response = whole.result(TIMEOUT_S)
            assert (response.status_code, error_code(response.text)) == (503, "engine_dead")
        code, out, said = running.end()
        assert code == 1
        assert "returned" not in out
        assert reason in said
        assert in_time(lambda: is_gone(engine))


@pytest.mark.parametrize(
    ("number", "drain_s", "settings"),
    [(signal.SIGTERM, 0.4, {"drain_timeout": 0.4}), (signal.SIGINT, 2.0, {"drain_timeout": 60})],
)
def test_what_does_not_finish_in_time_is_told_so(
    number: signal.Signals, drain_s: float, settings: dict[str, float], tmp_path: Path
) -> None:
    hung = tmp_path / "hung"
    args = {"model": f"hangs:{hung}"}
    with processes(args=args, settings=settings) as running, running.stream() as events:
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(running.post, prompt=HANG)
            assert in_time(hung.exists)
            sent = time.monotonic()
            running.server.send_signal(number)
            response = hanging.result(TIMEOUT_S)
            took = time.monotonic() - sent
            assert (response.status_code, error_code(response.text)) == (503, "engine_dead")
            assert drain_s <= took < drain_s + 2
        list(events)
        engine = running.engine_pid
        code, out, _ = running.end()
        assert (code, out) == (0, "returned\n")
        assert engine is None or is_gone(engine)


def test_an_interrupt_while_it_drains_ends_both_processes_at_once(slow: Path) -> None:
    options = {"args": {"model": f"slow:{slow}"}, "settings": {"drain_timeout": TIMEOUT_S}}
    with processes(**options) as running, contextlib.ExitStack() as stack:
        slow.touch()
        stack.enter_context(running.stream())
        engine = running.engine_pid
        assert engine is not None
        running.server.send_signal(signal.SIGTERM)
        assert in_time(lambda: running.status("/ready") == 503)
        running.server.send_signal(signal.SIGINT)
        assert running.end()[0] == 128 + signal.SIGINT
        assert in_time(lambda: is_gone(engine))


def test_an_engine_that_loads_ends_with_a_server_that_is_killed() -> None:
    with processes(ready=False, args={"model": "never"}) as running:
        assert in_time(lambda: running.engine_pid is not None)
        engine = running.engine_pid
        assert engine is not None
        running.server.kill()
        assert in_time(lambda: is_gone(engine))


def test_clients_that_go_at_once_are_gone_for_the_engine_within_a_quarter_second() -> None:
    def seconds(running: Processes) -> float:
        with contextlib.ExitStack() as streams:
            for _ in range(20):
                streams.enter_context(running.stream())
            were_there = running.has(running=20, waiting=0)  # none has come to its end by itself
            gone = time.monotonic()
        assert in_time(lambda: running.has(running=0, waiting=0))
        took = time.monotonic() - gone
        assert running.metric("kv_cache_usage_perc") == 0
        return took if were_there else math.inf

    with processes() as running:
        # The machine may have other things to do: it is in time once, if it ever can be.
        assert in_time(lambda: seconds(running) < 0.25)
