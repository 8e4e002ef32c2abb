from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from headway.errors import InvalidConfig
from headway.server.watch.tracing import Tracing, export_to
from server.test_stats import ENDED, Observed

NS = 1_000_000_000
EPOCH_S = 1_700_000_000.0
TRACE, SPAN = "a" * 32, "b" * 16


@pytest.fixture
def spans() -> Any:
    """(tracing, spans by name)."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracing = Tracing(provider, "m", epoch_s=EPOCH_S)

    def observe(**changes: Any) -> dict[str, Any]:
        exporter.clear()
        tracing.observe(Observed().step(None, replace(ENDED, **changes)))
        return {span.name: span for span in exporter.get_finished_spans()}

    return tracing, observe


def times(span: Any) -> tuple[float, float]:
    return (span.start_time / NS - EPOCH_S, span.end_time / NS - EPOCH_S)


def test_a_request_is_a_span_with_one_for_each_stage(spans: Any) -> None:
    _, observe = spans
    found = observe(request_id="chatcmpl-1")
    request = found.pop("chat m")
    assert times(request) == (1.0, 4.0)
    assert {name: times(span) for name, span in found.items()} == {
        "queue": (1.0, 1.5),
        "prefill": (1.5, 2.0),
        "decode": (2.0, 4.0),
    }
    assert {span.parent.span_id for span in found.values()} == {request.context.span_id}
    assert dict(request.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headway",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.e2e": 3.0,
        "headway.num_preemptions": 0,
    }
    assert request.status.is_unset


def test_a_request_that_never_ran_only_queued_and_is_an_error(spans: Any) -> None:
    _, observe = spans
    found = observe(
        request_id="cmpl-1", first_scheduled_s=None, first_token_s=None, finish_reason="timeout"
    )
    request = found.pop("text_completion m")
    assert {name: times(span) for name, span in found.items()} == {"queue": (1.0, 4.0)}
    assert request.attributes["error.type"] == "timeout"
    assert not request.status.is_ok


@pytest.mark.parametrize("request_id", ["chatcmpl-1", "chatcmpl-1-0", "chatcmpl-1-0-2"])
def test_a_request_is_part_of_the_trace_of_its_client(spans: Any, request_id: str) -> None:
    tracing, observe = spans
    assert observe(request_id=request_id)["chat m"].parent is None
    tracing.follow("chatcmpl-1", f"00-{TRACE}-{SPAN}-01")
    parent = observe(request_id=request_id)["chat m"].parent
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)
    assert observe(request_id="chatcmpl-2")["chat m"].parent is None


def test_without_the_extra_the_option_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # as if it were not there
    with pytest.raises(InvalidConfig, match=r"otlp_traces_endpoint: needs .*headway\[otel\]"):
        export_to("http://localhost:4318/v1/traces")
