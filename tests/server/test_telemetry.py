"""What watches over a server, around the real API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from headway.server.app import create_app
from headway.server.settings import ServerSettings
from headway.server.watch.telemetry import Telemetry
from server.fake_engine import FakeEngine, delta
from server.test_stats import STEP, Observed

PROMPT = "a prompt that nobody may see"


class Front:
    """The API as clients meet it."""

    def __init__(self, **settings: Any) -> None:
        self.engine = FakeEngine()
        given = ServerSettings(**settings)
        self.telemetry = Telemetry(given, now=lambda: 0.0, epoch_s=0.0)
        self.telemetry.model_opened("the-model", by_tenant=False)
        app = create_app(
            self.engine,
            self.engine.model,  # type: ignore[arg-type]
            metrics=self.telemetry.render,
        )
        self.app = self.telemetry.wrap(app, given.api_keys({}))

    def ask(
        self, path: str, body: object = None, headers: Mapping[str, str] = {}
    ) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                method = "GET" if body is None else "POST"
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(request())

    def completion(self, **fields: object) -> httpx.Response:
        return self.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, **fields})

    def shown(self, name: str) -> list[str]:
        common = 'engine="0",model_name="the-model"'
        lines = self.telemetry.render().decode().splitlines()
        return [line.replace(f",{common}", "").replace(f"{common},", "") for line in lines
                if line.startswith(f"headway:{name}")]  # fmt: skip


@pytest.fixture(autouse=True)
def _log_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headway")


def fields(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    found: dict[str, object] = caplog.records[-1].fields  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_logged_with_its_id_and_its_lengths(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    front = Front(access_log=True)
    response = front.completion(stream=stream)
    found = fields(caplog)
    assert str(found["answer_id"]) in response.text
    assert (found["status"], found["output_tokens"]) == (200, 3)
    assert found["prompt_tokens"] == len(PROMPT) + 1
    assert found["request_id"] == response.headers["x-request-id"]
    assert PROMPT not in caplog.text


def test_nothing_is_logged_where_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    Front().completion()
    assert not caplog.records


def test_an_error_within_a_stream_is_counted_and_logged_though_the_status_is_200(
    caplog: pytest.LogCaptureFixture,
) -> None:
    front = Front(access_log=True)
    front.engine.script = lambda _: [delta("x"), delta(finish="error", error="no")]
    front.completion(stream=True)
    found = fields(caplog)
    assert (found["status"], found["code"], found["output_tokens"]) == (200, "generation_failed", 1)
    assert front.shown("request_errors") == [
        'headway:request_errors_total{code="generation_failed"} 1.0'
    ]
    assert front.shown("http_requests") == [
        'headway:http_requests_total{route="/v1/completions",status="200"} 1.0'
    ]


def test_a_stranger_is_refused_before_the_api_and_counted() -> None:
    front = Front(api_key=("sesame",), allowed_origins=("https://a.example",))
    response = front.ask("/v1/completions", {"prompt": PROMPT}, {"Origin": "https://a.example"})
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://a.example"
    assert response.headers["x-request-id"]
    assert front.engine.added.empty()
    assert front.ask("/metrics", None, {"x-api-key": "sesame"}).status_code == 200
    assert front.shown("request_errors") == [
        'headway:request_errors_total{code="invalid_api_key"} 1.0'
    ]


def test_metrics_are_in_the_namespace_that_is_asked_for() -> None:
    front = Front(metrics_namespace="vllm")
    front.telemetry.observe(Observed().step(STEP))
    text = front.ask("/metrics").text
    assert 'vllm:num_requests_running{engine="0",model_name="the-model"} 3.0' in text


def test_metrics_tell_when_the_process_began() -> None:
    telemetry = Telemetry(ServerSettings(), now=lambda: 5.0, epoch_s=1000.0)
    telemetry.model_opened("m", by_tenant=False)
    assert "\nprocess_start_time_seconds 1005.0\n" in telemetry.render().decode()


def test_the_state_is_logged_unless_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    for front, num_lines in ((Front(log_stats=False), 0), (Front(), 1)):
        observed = Observed()
        for at in (0.0, 11.0):
            front.telemetry.observe(observed.step(STEP, at=at))
        assert len(caplog.records) == num_lines
