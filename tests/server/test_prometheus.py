from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.core.plan import Chunk
from headway.metrics import EngineState
from headway.server.watch.exchange import Exchange
from headway.server.watch.http_metrics import HttpMetrics
from headway.server.watch.instruments import Instruments
from headway.server.watch.prometheus import PrometheusMetrics
from headway.server.watch.stats import CacheInfo, StepStats
from server.test_stats import ENDED, SAMPLE, STEP, Observed, decodes

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "metrics.md"
CACHE = CacheInfo(16, 10, 1000, "int8", True)
NEVER_ADMITTED = replace(
    ENDED,
    request_id="d",
    first_scheduled_s=None,
    first_token_s=None,
    num_output_tokens=0,
    finish_reason="abort",
)


class Shown(Observed):
    """What metrics say of what an engine does."""

    def __init__(self, namespace: str = "headway", *, by_tenant: bool = False) -> None:
        super().__init__()
        self.instruments = Instruments("m", namespace)
        self.metrics = PrometheusMetrics(self.instruments, by_tenant=by_tenant)

    def step(self, *args: object, **options: object) -> StepStats:
        stats = super().step(*args, **options)  # type: ignore[arg-type]
        self.metrics.observe(stats)
        return stats

    @property
    def samples(self) -> dict[str, float]:
        """Name and labels (but for those that all have) → value."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.instruments.render().decode()):
            for sample in family.samples:
                labels = dict(sample.labels)
                assert (labels.pop("engine"), labels.pop("model_name")) == ("0", "m")
                shown = "".join(f"{{{key}={value}}}" for key, value in labels.items())
                found[sample.name.removeprefix("headway:") + shown] = sample.value
        return found

    def holds(self, expected: dict[str, float]) -> None:
        got = self.samples
        assert {name: got[name] for name in expected} == expected


def test_a_step_moves_the_counters_and_the_state_is_that_after_it() -> None:
    shown = Shown()
    shown.metrics.engine_started(CACHE)
    shown.state = shown.state._replace(num_waiting=2)
    shown.step(replace(STEP, waiting={"blocks": 2}))
    shown.step(replace(STEP, failed=True, preemptions={}, waiting={"blocks": 2}))
    shown.holds(
        {
            "num_requests_running": 3,
            "num_requests_waiting": 2,
            "num_requests_waiting_by_reason{reason=blocks}": 2,
            "num_requests_waiting_by_reason{reason=width}": 0,
            "kv_cache_usage_perc": 0.6,
            "kv_cache_cached_perc": 0.3,
            "prompt_tokens_total": 42,
            "prompt_tokens_by_source_total{source=local_compute}": 10,
            "prompt_tokens_by_source_total{source=local_cache_hit}": 32,
            "prompt_tokens_cached_total": 32,
            "generation_tokens_total": 2,
            "prefix_cache_queries_total": 42,
            "prefix_cache_hits_total": 32,
            "prefix_cache_hit_rate": 32 / 42,
            "prefix_cache_readmission_queries_total": 66,
            "prefix_cache_readmission_hits_total": 64,
            "num_preemptions_total": 3,
            "num_preemptions_by_cause_total{cause=memory}": 1,
            "num_preemptions_by_cause_total{cause=priority}": 2,
            "swapped_bytes_total{direction=out}": 10_000,
            "swapped_bytes_total{direction=in}": 6_000,
            "kv_cache_evictions_total": 8,
            "recomputed_tokens_total": 14,
            "discarded_tokens_total": 18,
            "steps_failed_total": 1,
            "step_duration_seconds_count": 2,
            "step_duration_seconds_sum": 0.04,
            "iteration_tokens_total_sum": 12,
            "step_budget_usage_sum": 12 / 256,
        }
    )


def test_no_lookups_are_told_from_no_hits() -> None:
    assert math.isnan(Shown().samples["prefix_cache_hit_rate"])


def test_an_ended_request_is_counted_by_its_reason_and_timed() -> None:
    shown = Shown()
    shown.step(STEP, ENDED, NEVER_ADMITTED)
    shown.holds(
        {
            "request_success_total{finished_reason=stop}": 1,
            "request_success_total{finished_reason=abort}": 1,
            "request_success_total{finished_reason=length}": 0,
            "time_to_first_token_seconds_count": 1,
            "time_to_first_token_seconds_sum": 1.0,
            "request_queue_time_seconds_sum": 0.5,
            "request_prefill_time_seconds_sum": 0.5,
            "request_decode_time_seconds_sum": 2.0,
            "request_inference_time_seconds_sum": 2.5,
            "request_time_per_output_token_seconds_sum": 0.2,
            "e2e_request_latency_seconds_count": 2,
            "e2e_request_latency_seconds_sum": 6.0,
            "request_prompt_tokens_sum": 60,
            "request_prefill_kv_computed_tokens_sum": 14,
            "request_generation_tokens_sum": 11,
            "request_params_max_tokens_sum": 80,
        }
    )


def test_gaps_between_tokens_are_told_one_by_one() -> None:
    shown = Shown()
    for at in (10.0, 10.02, 10.06):
        shown.step(decodes("a", "b"), at=at)
    got = shown.samples
    assert got["inter_token_latency_seconds_count"] == 4
    assert got["inter_token_latency_seconds_bucket{le=0.025}"] == 2
    assert got["inter_token_latency_seconds_sum"] == pytest.approx(0.12)


def test_drafts_are_counted_as_sequences_as_tokens_and_where_they_were_right() -> None:
    shown = Shown()
    drafted = (STEP.chunks[0], Chunk("b", 32, (1, 2, 3), (2, 3, 4), SAMPLE, num_drafts=2))
    shown.step(replace(STEP, chunks=drafted, num_draft_tokens=2, num_accepted_tokens=1))
    shown.step(STEP)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [shown.samples[f"spec_decode_{name}_total"] for name in names] == [1, 2, 1]


def test_an_engine_with_nothing_left_to_do_shows_zero_and_what_its_cache_still_has() -> None:
    shown = Shown()
    shown.step(replace(STEP, waiting={"blocks": 2}))
    shown.state = EngineState(0, 0, 0, 9, 1)
    shown.step(None, ENDED)
    shown.holds(
        {
            "num_requests_running": 0,
            "num_requests_waiting": 0,
            "num_requests_waiting_by_reason{reason=blocks}": 0,
            "kv_cache_usage_perc": 0,
            "kv_cache_cached_perc": 0.9,
        }
    )


def test_an_engine_that_is_lost_has_nothing_and_one_started_again_is_counted() -> None:
    shown = Shown()
    shown.metrics.engine_started(CACHE)
    shown.step(STEP)
    shown.metrics.engine_lost()
    nothing = {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "kv_cache_cached_perc": 0,
        "prefix_cache_queries_total": 21,
    }
    shown.holds({"engine_restarts_total": 0, **nothing})
    shown.metrics.engine_started(CACHE)
    shown.holds({"engine_restarts_total": 1, **nothing})


def test_tenants_are_counted_where_asked_and_only_so_many_of_them() -> None:
    shown, quiet = Shown(by_tenant=True), Shown()
    for index in range(40):
        for each in (shown, quiet):
            each.step(None, replace(ENDED, tenant=f"t{index}"))
    shown.holds(
        {
            "tenant_requests_total{tenant=t0}": 1,
            "tenant_prompt_tokens_total{tenant=t31}": 30,
            "tenant_generation_tokens_total{tenant=other}": 88,
        }
    )
    assert "tenant_requests_total{tenant=t32}" not in shown.samples
    assert not [name for name in quiet.samples if name.startswith("tenant")]


def test_vllms_names_are_vllms_and_what_it_lacks_stays_ours() -> None:
    shown = Shown("vllm")
    shown.metrics.engine_started(CACHE)
    shown.state = shown.state._replace(num_waiting=2)
    shown.step(replace(STEP, waiting={"prefix": 2}))
    got = shown.samples
    assert got["vllm:num_requests_running"] == 3
    assert got["vllm:num_requests_waiting_by_reason{reason=deferred}"] == 2
    assert got["vllm:num_requests_waiting_by_reason{reason=capacity}"] == 0
    assert got["num_requests_waiting_by_reason{reason=prefix}"] == 2
    assert got["recomputed_tokens_total"] == 7
    info = [name for name in got if name.startswith("vllm:cache_config_info")]
    assert "{block_size=16}" in info[0]
    assert "{num_gpu_blocks=10}" in info[0]
    known = {name.partition("{")[0] for name in got if name.startswith("vllm:")}
    for name in (
        "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket", "kv_cache_usage_perc", "num_preemptions_total",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "iteration_tokens_total_bucket",
        "request_queue_time_seconds_bucket",
    ):  # fmt: skip
        assert f"vllm:{name}" in known


def test_no_series_says_when_a_counter_began() -> None:
    shown = Shown()
    shown.step(STEP, ENDED)
    assert not [name for name in shown.samples if "_created" in name]


def documented(section: str) -> dict[str, tuple[str, ...]]:
    """Name → labels, as the guide's table of that section has them."""
    text = GUIDE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", text, re.MULTILINE)
    return {f"{name} {kind}": tuple(re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows}


@pytest.mark.parametrize("namespace", ["headway", "vllm"])
def test_the_guide_has_every_metric_and_no_other(namespace: str) -> None:
    shown = Shown(namespace, by_tenant=True)
    http = HttpMetrics(shown.instruments)
    shown.metrics.engine_started(CACHE)
    shown.step(STEP, ENDED)
    exchange = Exchange("id", "GET", "/x", code="queue_full")
    http.count(exchange)
    found: dict[str, dict[str, tuple[str, ...]]] = {"headway": {}, "vllm": {}}
    for family in text_string_to_metric_families(shown.instruments.render().decode()):
        where, name = family.name.split(":")
        labels = {key for sample in family.samples for key in sample.labels}
        rest = tuple(sorted(labels - {"engine", "model_name", "le"}))
        found[where][f"{name} {family.type}"] = rest
    theirs, own = documented("vLLM has them too"), documented("Headway's own")
    if namespace == "headway":
        expected = {"headway": theirs | own, "vllm": {}}
    else:
        reasons = {"num_requests_waiting_by_reason gauge": ("reason",)}
        expected = {"headway": own, "vllm": theirs | reasons}
    assert found == {
        where: {name: tuple(sorted(labels)) for name, labels in each.items()}
        for where, each in expected.items()
    }
