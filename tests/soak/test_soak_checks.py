"""That the soak and the overload can fail: a server that is wrong in one way is told so. On virtual
time, so that no busy machine is taken for a server that is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from random import Random

import pytest

from headway.bench.http import HttpClient
from scripted_server import listening
from soak.asking import Ask, ask, good_ask
from soak.flaws import flaw
from soak.overload import Figures, Seen, percentile
from soak.overload import Limits as OverloadLimits
from soak.served import Usage, gauges, growth
from soak.server_soak import Limits, Soak
from virtual_loop import run_virtually

IDLE = "headway:num_requests_running{} 0\nheadway:num_requests_waiting{} 0\n"
METRICS = IDLE + "headway:kv_cache_usage_perc{} 0.0\n"
LIMITS = Limits(end_within_s=0.3, idle_within_s=0.0)
SERVICE_S = 0.1


class FakeServer:
    """Answers every completion as it is told, and the rest as a server that is well."""

    metrics = METRICS
    health = 200
    texts = iter(())
    """Of answers; then one text for ever."""
    hangs = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            status, content = self._answer(head.split()[1].decode(), body)
            await asyncio.sleep(60 if content is None else SERVICE_S)
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(content)}\r\n\r\n".encode())
            writer.write(content)
            await writer.drain()

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes | None]:
        if path == "/metrics":
            return 200, self.metrics.encode()
        if path == "/health":
            return self.health, b"{}"
        asked = json.loads(body)
        if self.hangs and "seed" not in asked:
            return 200, None
        text = next(self.texts, "same")
        last: dict[str, object] = {
            "type": "message_delta",
            "response": {"status": "completed"},
            "status": "completed",
            "stop_reason": "end_turn",
            "delta": {"stop_reason": "end_turn"},
            "choices": [
                {"index": i, "text": text, "finish_reason": "stop"}
                for i in range(asked.get("n", 1))
            ],
        }
        if not asked.get("stream"):
            return 200, json.dumps(last).encode()
        events = [json.dumps(last)]
        if path == "/v1/messages":
            events.append('{"type": "message_stop"}')
        elif path != "/v1/responses":
            events.append("[DONE]")
        return 200, "".join(f"data: {event}\n\n" for event in events).encode()


def soaked(server: FakeServer, grown: Callable[[int], int] = lambda _: 0) -> list[str]:
    """What a short soak of good requests says is wrong."""

    async def run() -> list[str]:
        async with listening(server) as url:
            calls = iter(range(100))
            soak = Soak(
                url,
                lambda: {"server": Usage(grown(next(calls)), 1, 1)},
                Random(0),
                LIMITS,
                say=lambda _: None,
            )
            soak._one = lambda: soak._ask(good_ask(soak.rng))  # nobody goes away here
            await soak.run(3, 0.1)
            return soak.problems

    return run_virtually(run())


def test_a_server_that_is_well_has_no_problem() -> None:
    assert soaked(FakeServer()) == []


def test_a_block_that_is_missing_is_a_problem() -> None:
    server = FakeServer()
    server.metrics = METRICS.replace("perc{} 0.0", "perc{} 0.01")
    assert "'kv_cache_usage_perc': 0.01" in soaked(server)[0]


def test_a_request_without_an_end_is_a_problem() -> None:
    server = FakeServer()
    server.hangs = True
    assert any("no end within 0.3 s" in problem for problem in soaked(server))


def test_a_server_that_is_not_well_is_a_problem() -> None:
    server = FakeServer()
    server.health = 503
    assert "/health answers 503" in soaked(server)


def test_a_process_that_grows_is_a_problem() -> None:
    assert "server grew by" in soaked(FakeServer(), lambda call: call * 2**24)[-1]


def test_an_answer_that_others_change_is_a_problem() -> None:
    server = FakeServer()
    server.texts = iter(["alone", "in company"])

    async def run() -> str | None:
        async with listening(server) as url:
            client = HttpClient(url, headers={})
            request = Ask("/v1/completions", b'{"prompt": "a"}', text="alone")
            assert (await ask(client, request)).problem is None
            ending = await ask(client, request)
            client.close()
            return ending.problem

    assert "'in company' is not the answer" in str(run_virtually(run()))


STREAM = b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("path", "body", "stream", "wrong"),
    [
        ("/v1/completions", STREAM, True, None),
        ("/v1/completions", STREAM[:-16], True, "no [DONE] at the end"),
        ("/v1/completions", STREAM.replace(b'"stop"', b"null"), True, "finish reasons {0: None}"),
        ("/v1/completions", b'{"choices": []}', False, "finish reasons {}"),
        ("/v1/responses", b'{"status": "incomplete"}', False, None),
        ("/v1/responses", b'{"status": "in_progress"}', False, "the status in_progress"),
        ("/v1/responses", b'data: {"type": "error"}\n', True, "the status None"),
        ("/v1/messages", b'{"stop_reason": "end_turn"}', False, None),
        ("/v1/messages", b'{"stop_reason": null}', False, "no stop_reason"),
        ("/v1/messages", b'data: {"type": "error"}\n', True, "no message_stop at the end"),
        ("/v1/messages", b'data: {"type": "message_stop"}\n', True, "no stop_reason"),
    ],
)
def test_an_answer_without_its_end_is_a_problem(
    path: str, body: bytes, stream: bool, wrong: str | None
) -> None:
    found = flaw(path, body, 1, stream=stream)
    assert found is None if wrong is None else str(found).startswith(wrong)


def test_growth_is_that_of_the_last_third_and_not_of_warming_up() -> None:
    assert growth([0, 90, 100, 100, 100, 100, 100, 100, 100]) == 0
    assert growth([10 * i for i in range(9)]) == 30


def test_a_metric_that_is_not_there_is_not_taken_for_0() -> None:
    with pytest.raises(AssertionError, match="does not show num_requests_running"):
        gauges("headway:num_requests_running_total 0", "num_requests_running")


def seen(*, rejected_s: float = 0.001, took_s: float = 1.0) -> Seen:
    return Seen([rejected_s] * 100, [took_s] * 100, [took_s] * 100)


@pytest.mark.parametrize(
    ("beyond", "grown", "problem"),
    [
        (seen(), 0, None),
        (seen(rejected_s=0.06), 0, "95 of 100 rejections took up to 60 ms"),
        (seen(took_s=1.5), 0, "ttft_s of accepted requests, p95: 1.000, then 1.500"),
        (seen(), 2**30, "engine grew by 1024.0 MiB"),
        (Seen([], [1.0], [1.0]), 0, "nothing was rejected"),
    ],
)
def test_overload_that_harms_is_a_problem(beyond: Seen, grown: int, problem: str | None) -> None:
    found = Figures(10.0, seen(), beyond, {"engine": grown}).problems(OverloadLimits())
    assert found[:1] == ([] if problem is None else [problem])


def test_percentiles_are_values_that_were_seen() -> None:
    assert [percentile(range(1, 101), p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7.0], 95) == 7.0
