from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headway.server.errors import ApiError, to_api_error
from headway.server.watch.access_log import log_access
from headway.server.watch.exchange import CLIENT_GONE, Exchange, Exchanges, current_exchange
from headway.server.watch.http_metrics import HttpMetrics
from headway.server.watch.instruments import Instruments
from headway.server.watch.logs import JsonFormatter, TextFormatter


async def _answered(request: Request) -> Response:
    exchange = current_exchange()
    assert exchange is not None
    exchange.note_answer("cmpl-1")
    exchange.note_usage(7, 4, 2)
    return PlainTextResponse("ok")


async def _refused(request: Request) -> Response:
    return ApiError(429, "full", code="queue_full").response()


async def _wrong(request: Request) -> Response:
    return ApiError(400, "wrong").response()


async def _fails(request: Request) -> Response:
    return to_api_error(RuntimeError("no")).response()


async def _raises(request: Request) -> Response:
    raise RuntimeError("no")


class Watched:
    """An application, and the exchanges that it had."""

    def __init__(self, app: Any = None) -> None:
        self.ended: list[Exchange] = []
        self.answering: list[tuple[str | None, str | None]] = []
        clock, ids = itertools.count(), itertools.count(1)
        self.app = Exchanges(
            app or _application(),
            self.ended.append,
            now=lambda: float(next(clock)),
            on_answer=lambda each: self.answering.append((each.answer_id, each.trace_parent)),
            make_id=lambda: f"made-{next(ids)}",
        )

    def ask(self, path: str, headers: Mapping[str, str | bytes] = {}) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.get(path, headers=headers)  # type: ignore[arg-type]

        return asyncio.run(request())


def _application() -> Starlette:
    routes = {
        "/answered": _answered, "/refused": _refused, "/wrong": _wrong, "/fails": _fails,
        "/raises": _raises, "/v1/models/{name:path}": _answered,
    }  # fmt: skip
    return Starlette(routes=[Route(path, answer) for path, answer in routes.items()])


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("abc-123_Z.~", "abc-123_Z.~"),
        ("x" * 128, "x" * 128),
        ("x" * 129, "made-1"),
        ("", "made-1"),
        ("two words", "made-1"),
        ("ümlaut".encode(), "made-1"),
        (b"a\x1b[2J", "made-1"),
    ],
)
def test_a_request_id_is_the_clients_where_it_is_short_and_printable(
    given: str | bytes, used: str
) -> None:
    watched = Watched()
    response = watched.ask("/answered", {"X-Request-Id": given})
    assert response.headers["x-request-id"] == response.headers["request-id"] == used
    assert watched.ended[0].request_id == used


def test_an_error_has_the_request_id_too_and_an_internal_one_says_it_in_the_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    assert watched.ask("/refused").headers["x-request-id"] == "made-1"
    assert watched.ask("/absent").headers["x-request-id"] == "made-2"
    assert "under made-3." in watched.ask("/fails").json()["error"]["message"]
    assert [getattr(record, "fields", None) for record in caplog.records] == [
        {"request_id": "made-3"}
    ]


def test_an_exchange_tells_how_it_went() -> None:
    watched = Watched()
    watched.ask("/answered?secret=1", {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    (exchange,) = watched.ended
    assert (exchange.method, exchange.path, exchange.route) == ("GET", "/answered", "/answered")
    assert (exchange.status, exchange.code, exchange.duration_s) == (200, None, 1.0)
    assert (exchange.num_prompt_tokens, exchange.num_cached_tokens) == (7, 4)
    assert (exchange.num_output_tokens, exchange.answer_id) == (2, "cmpl-1")
    assert watched.answering == [("cmpl-1", f"00-{'a' * 32}-{'b' * 16}-01")]


@pytest.mark.parametrize(
    ("path", "status", "code", "route"),
    [
        ("/refused", 429, "queue_full", "/refused"),
        ("/wrong", 400, "invalid_request", "/wrong"),
        ("/fails", 500, "internal", "/fails"),
        ("/raises", 500, "internal", "/raises"),
        ("/nowhere/at/all", 404, None, "other"),
        ("/v1/models/org/name", 200, None, "/v1/models/{name}"),
    ],
)
def test_what_it_came_to_is_told_by_code_and_by_route(
    path: str, status: int, code: str | None, route: str
) -> None:
    watched = Watched()
    watched.ask(path)
    (exchange,) = watched.ended
    assert (exchange.status, exchange.code, exchange.route) == (status, code, route)


def test_a_malformed_trace_is_none() -> None:
    watched = Watched()
    watched.ask("/answered", {"traceparent": "00-xyz-1"})
    assert watched.answering == [("cmpl-1", None)]


def test_a_client_that_left_before_an_answer_is_told_as_such() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        return

    watched = Watched(silent)
    scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "headers": []}
    asyncio.run(watched.app(scope, None, None))  # type: ignore[arg-type]
    assert watched.ended[0].status == CLIENT_GONE


def test_outside_of_a_server_there_is_none() -> None:
    assert current_exchange() is None


def record(caplog: pytest.LogCaptureFixture, exchange: Exchange) -> logging.LogRecord:
    with caplog.at_level(logging.INFO, "headway.server.watch.access_log"):
        log_access(exchange)
    return caplog.records[-1]


def test_the_access_log_is_a_line_of_text_or_an_object(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.ask("/answered", {"X-Request-Id": "mine"})
    found = record(caplog, watched.ended[0])
    assert (
        TextFormatter()
        .format(found)
        .endswith(
            "INFO request method=GET path=/answered status=200 duration_s=1.0 request_id=mine "
            "answer_id=cmpl-1 prompt_tokens=7 cached_tokens=4 output_tokens=2"
        )
    )
    content = json.loads(JsonFormatter().format(found))
    assert (content["status"], content["request_id"], content["output_tokens"]) == (200, "mine", 2)


def test_the_access_log_has_no_key_no_query_and_no_line_of_a_strangers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    watched.ask("/%0Aforged?prompt=secret", {"Authorization": "Bearer sesame"})
    line = TextFormatter().format(record(caplog, watched.ended[0]))
    assert "path=/%0Aforged " in line
    assert not [word for word in ("\n", "secret", "sesame") if word in line]


def test_a_traceback_is_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    Watched().ask("/fails")
    found = caplog.records[-1]
    assert "RuntimeError: no" in json.loads(JsonFormatter().format(found))["exception"]
    assert TextFormatter().format(found).endswith("RuntimeError: no")


def test_http_is_counted_by_route_status_and_code_and_strangers_make_no_series() -> None:
    instruments, watched = Instruments("m"), Watched()
    metrics = HttpMetrics(instruments)
    for path in ("/answered", "/answered", "/refused", "/a", "/b", "/c"):
        watched.ask(path)
    for exchange in watched.ended:
        metrics.count(exchange)
    text = instruments.render().decode()
    common = 'engine="0",model_name="m"'
    lines = [
        f'headway:http_requests_total{{{common},route="/answered",status="200"}} 2.0',
        f'headway:http_requests_total{{{common},route="/refused",status="429"}} 1.0',
        f'headway:http_requests_total{{{common},route="other",status="404"}} 3.0',
        f'headway:request_errors_total{{code="queue_full",{common}}} 1.0',
    ]
    assert [line for line in text.splitlines() if not line.startswith("#")] == lines
