"""Pages of metrics, ours and vLLM's of several versions, read as the same samples."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headway.doctor.exposition import read_exposition
from headway.doctor.readings import Window
from headway.doctor.series import Sample, Series
from headway.server.watch.exchange import Exchange
from headway.server.watch.http_metrics import HttpMetrics
from server.test_prometheus import CACHE, Shown
from server.test_stats import ENDED, STEP, decodes

OLD = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{version="3.12"} 1.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e9
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
# TYPE vllm:gpu_prefix_cache_hit_rate gauge
vllm:gpu_prefix_cache_hit_rate{model_name="m"} NaN
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{model_name="m"} 90.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 30.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{model_name="m"} 2.0
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_sum{model_name="m"} 1.5
vllm:time_per_output_token_seconds_bucket{le="0.1",model_name="m"} 4.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 5.0
vllm:time_per_output_token_seconds_count{model_name="m"} 5.0
"""


def page(namespace: str, *, steps: int) -> str:
    shown = Shown(namespace)
    HttpMetrics(shown.instruments).count(Exchange("id", "GET", "/x", code="queue_full"))
    shown.metrics.engine_started(CACHE)
    shown.state = shown.state._replace(num_waiting=2)
    for _ in range(steps):
        shown.step(replace(STEP, waiting={"width": 2}), ENDED)
        for at in (10.0, 10.02):
            shown.step(replace(decodes("a"), waiting={"width": 2}), at=at)
    return shown.instruments.render().decode()


def sample(text: str) -> Sample:
    found = read_exposition(text, 1.0)
    assert found is not None
    return found.engines["0"]


def window(before: str, after: str) -> Window:
    samples = (sample(before), replace(sample(after), time_s=3.0))
    return Window(Series(source="x", engine="", flavour="headway", samples=samples))


@pytest.mark.parametrize("namespace", ["headway", "vllm"])
def test_our_own_metrics_are_understood_in_both_namespaces(namespace: str) -> None:
    found = read_exposition(page(namespace, steps=1), 1.0)
    assert found is not None
    assert found.flavour == "headway"
    seen = window(page(namespace, steps=1), page(namespace, steps=3))
    assert seen.increase("prefix_cache_queries") == 42
    assert seen.increase("num_preemptions_by_cause", cause="memory") == 6
    assert seen.increase("request_success", finished_reason="stop") == 2
    assert seen.increase("request_errors", code="queue_full") == 0
    assert seen.rate("steps_failed") == 0
    waiting = seen.levels("num_requests_waiting_by_reason", reason="width")
    assert waiting is not None
    assert waiting.values == (2, 2)
    usage = seen.levels("kv_cache_usage_perc")
    assert usage is not None
    assert usage.mean == pytest.approx(0.6)
    gaps = seen.distribution("inter_token_latency_seconds")
    assert gaps is not None
    assert gaps.count > 0
    assert (seen.limit("block_size"), seen.info("enable_prefix_caching")) == (16, "True")


def test_older_names_of_vllm_are_what_they_are_called_now() -> None:
    found = read_exposition(OLD, 1.0)
    assert found is not None
    assert found.flavour == "vllm"
    old = found.engines["0"]
    assert old.gauges["kv_cache_usage_perc"] == {frozenset(): 0.25}
    assert old.counters["prefix_cache_queries"] == {frozenset(): 90.0}
    assert old.counters["prefix_cache_hits"] == {frozenset(): 30.0}, "without a type"
    assert old.counters["num_preemptions"] == {frozenset(): 2.0}
    assert old.histograms["inter_token_latency_seconds"] == ((0.1, math.inf), (4.0, 5.0), 1.5)
    assert "gpu_prefix_cache_hit_rate" not in old.gauges, "NaN is no value"
    assert "num_requests_waiting" not in old.gauges


def test_where_a_version_has_both_names_nothing_is_counted_twice() -> None:
    both = OLD + (
        "# TYPE vllm:prefix_cache_queries counter\n"
        'vllm:prefix_cache_queries_total{model_name="m"} 90.0\n'
    )
    assert sample(both).counters["prefix_cache_queries"] == {frozenset(): 90.0}


def test_engines_behind_one_address_are_told_apart_and_models_of_one_added_up() -> None:
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
        'vllm:num_requests_running{engine="0",model_name="lora"} 2\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 5\n'
    )
    found = read_exposition(text, 1.0)
    assert found is not None
    running = {name: each.gauges["num_requests_running"] for name, each in found.engines.items()}
    assert running == {"0": {frozenset(): 3.0}, "1": {frozenset(): 5.0}}


def test_a_counter_without_series_counted_nothing_yet() -> None:
    text = "# TYPE headway:request_errors counter\n" + OLD
    seen = window(text, text + 'headway:request_errors_total{code="queue_full"} 3\n')
    assert sample(text).counters["request_errors"] == {}
    assert "steps_failed" not in sample(text).counters
    assert seen.increase("request_errors", code="queue_full") == 3


@pytest.mark.parametrize(
    "text", ["", "<!doctype html><html>Not found</html>", "# TYPE up gauge\nup 1\n"]
)
def test_what_has_no_such_metrics_is_none(text: str) -> None:
    assert read_exposition(text, 1.0) is None


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{model_name="m"} many',
        f"vllm:num_requests_running {10**400}",
        "# TYPE vllm:x histogram\nvllm:x_bucket 1",
    ],
)
def test_broken_text_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the parser's, whatever it says
        read_exposition(line + "\n", 1.0)
