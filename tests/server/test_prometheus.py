from __future__ import annotations

import math
from dataclasses import replace

import httpx
from prometheus_client.parser import text_string_to_metric_families

from headway.core.plan import Chunk
from headway.metrics import Admission, RequestRecord, StepRecord
from headway.server.prometheus import PrometheusMetrics
from server.fake_engine import FakeEngine

STEP = StepRecord(
    step=1,
    time_s=3.0,
    duration_s=0.02,
    chunks=(
        Chunk("a", 16, (1,) * 5, (0, 1)),
        Chunk("b", 32, (1,), (2, 3, 4)),
        Chunk("c", 40, (1,), (5, 6, 7)),
    ),
    num_tokens=7,
    admissions={"a": Admission("first", 21, 16), "b": Admission("again", 33, 32)},
    budget=256,
    num_running=3,
    waiting={"blocks": 2},
    blocks_used=6,
    blocks_cached=3,
    blocks_free=1,
    evictions=4,
    preemptions={"memory": 1, "priority": 2},
    recomputed_tokens=7,
    discarded_tokens=9,
    swapped_out_blocks=5,
    swapped_in_blocks=3,
)
ENDED = RequestRecord(
    request_id="c",
    arrival_s=1.0,
    first_scheduled_s=1.5,
    first_token_s=2.0,
    finished_s=4.0,
    num_prompt_tokens=30,
    num_output_tokens=11,
    num_cached_tokens=16,
    num_preemptions=0,
    priority=0,
    finish_reason="stop",
)
NEVER_ADMITTED = replace(
    ENDED,
    request_id="d",
    first_scheduled_s=None,
    first_token_s=None,
    num_output_tokens=0,
    finish_reason="abort",
)


def samples(metrics: PrometheusMetrics) -> dict[str, float]:
    """Name and labels (but for the model's) → value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "m"
            name = sample.name.removeprefix("headway:")
            assert name != sample.name
            found[name + "".join(f"{{{key}={value}}}" for key, value in labels.items())] = (
                sample.value
            )
    return found


def test_a_step_sets_the_gauges_and_moves_the_counters() -> None:
    metrics = PrometheusMetrics("m")
    metrics(STEP, ())
    metrics(replace(STEP, failed=True, preemptions={}), ())
    got = samples(metrics)
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "num_requests_waiting_by_reason{reason=blocks}": 2,
        "num_requests_waiting_by_reason{reason=width}": 0,
        "kv_cache_usage_perc": 0.6,
        "kv_cache_cached_perc": 0.3,
        "prefix_cache_queries_total": 42,
        "prefix_cache_hits_total": 32,
        "prefix_cache_hit_rate": 32 / 42,
        "prefix_cache_readmission_queries_total": 66,
        "prefix_cache_readmission_hits_total": 64,
        "num_preemptions_total{cause=memory}": 1,
        "num_preemptions_total{cause=priority}": 2,
        "swapped_out_blocks_total": 10,
        "swapped_in_blocks_total": 6,
        "kv_cache_evictions_total": 8,
        "recomputed_tokens_total": 14,
        "discarded_tokens_total": 18,
        "steps_failed_total": 1,
        "step_duration_seconds_count": 2,
        "step_duration_seconds_sum": 0.04,
        "iteration_tokens_total_sum": 14,
    }
    assert {name: got[name] for name in expected} == expected


def test_no_lookups_are_told_from_no_hits() -> None:
    assert math.isnan(samples(PrometheusMetrics("m"))["prefix_cache_hit_rate"])


def test_an_ended_request_is_counted_by_its_reason_and_timed() -> None:
    metrics = PrometheusMetrics("m")
    metrics(STEP, (ENDED, NEVER_ADMITTED))
    got = samples(metrics)
    expected = {
        "request_success_total{finished_reason=stop}": 1,
        "request_success_total{finished_reason=abort}": 1,
        "request_success_total{finished_reason=length}": 0,
        "prompt_tokens_total": 60,
        "generation_tokens_total": 11,
        "time_to_first_token_seconds_count": 1,
        "time_to_first_token_seconds_sum": 1.0,
        "request_queue_time_seconds_sum": 0.5,
        "request_time_per_output_token_seconds_sum": 0.2,
        "e2e_request_latency_seconds_count": 2,
        "e2e_request_latency_seconds_sum": 6.0,
    }
    assert {name: got[name] for name in expected} == expected


def test_what_ended_with_a_step_is_no_longer_in_the_gauges() -> None:
    metrics = PrometheusMetrics("m")
    metrics(STEP, (ENDED, NEVER_ADMITTED))
    got = samples(metrics)
    assert (got["num_requests_running"], got["num_requests_waiting"]) == (2, 1)


def test_what_ended_while_the_next_plan_was_in_flight_is_not_in_the_gauges_either() -> None:
    metrics = PrometheusMetrics("m")
    metrics(STEP, (ENDED, NEVER_ADMITTED))
    metrics(replace(STEP, step=2, time_s=3.5), ())
    got = samples(metrics)
    assert (got["num_requests_running"], got["num_requests_waiting"]) == (2, 1)
    metrics(replace(STEP, step=3, time_s=4.5), ())
    got = samples(metrics)
    assert (got["num_requests_running"], got["num_requests_waiting"]) == (3, 2)


def test_drafts_are_counted_as_sequences_as_tokens_and_where_they_were_right() -> None:
    metrics = PrometheusMetrics("m")
    drafted = (STEP.chunks[0], Chunk("b", 32, (1, 2, 3), (2, 3, 4), num_drafts=2))
    metrics(replace(STEP, chunks=drafted, num_draft_tokens=2, num_accepted_tokens=1), ())
    metrics(STEP, ())
    got = samples(metrics)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [got[f"spec_decode_{name}_total"] for name in names] == [1, 2, 1]


def test_an_engine_with_nothing_left_to_do_shows_zero() -> None:
    idle = (
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason{reason=blocks}",
        "kv_cache_usage_perc",
    )
    last = tuple(replace(ENDED, request_id=request_id) for request_id in "abc")
    never = (NEVER_ADMITTED, replace(NEVER_ADMITTED, request_id="e"))
    for end in ((STEP, last + never), (None, ())):
        metrics = PrometheusMetrics("m")
        metrics(STEP, ())
        metrics(*end)
        got = samples(metrics)
        assert [got[name] for name in idle] == [0, 0, 0, 0]


def test_the_server_exports_what_the_engine_observes(
    client: httpx.Client, engine: FakeEngine
) -> None:
    (observer,) = engine.observers
    observer(STEP, ())
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert 'headway:num_requests_running{model_name="the-model"} 3.0' in response.text
