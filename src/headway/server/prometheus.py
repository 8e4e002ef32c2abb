"""Step and request records, as Prometheus metrics under vLLM's names.

Where vLLM counts prompt and output tokens as they are computed, the records tell them at
the end of a request; `iteration_tokens_total` has both kinds together, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headway.metrics import PrefixHitRate, RequestRecord, StepRecord

__all__ = ["PrometheusMetrics"]

_LATENCY_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_WAITING_REASONS = ("width", "budget", "blocks", "watermark", "preempted", "prefix", "isolated")
_PREEMPTION_CAUSES = ("memory", "priority")
_FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")


class PrometheusMetrics:
    """An observer with a registry of its own. Called in the step thread, rendered in another."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self._recent_lookups = PrefixHitRate()
        self._ended_before: tuple[RequestRecord, ...] = ()
        """With the last step."""
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def __call__(self, step: StepRecord | None, ended: tuple[RequestRecord, ...]) -> None:
        if step is None:
            self._observe_idle()
        else:
            self._observe_state(step, ended)
            self._observe_work(step)
        for request in ended:
            self._observe_request(request)

    def _observe_state(self, step: StepRecord, ended: tuple[RequestRecord, ...]) -> None:
        # A record shows the state that its plan left. What has ended since must not stay in
        # the gauges, for no step may follow soon; it may have ended with the result before.
        gone = [r for r in (*self._ended_before, *ended) if r.finished_s > step.time_s]
        self._ended_before = ended
        batch = {chunk.request_id for chunk in step.chunks} if gone else set()
        running = step.num_running - sum(request.request_id in batch for request in gone)
        waiting = step.num_waiting - sum(request.first_scheduled_s is None for request in gone)
        num_blocks = step.blocks_used + step.blocks_cached + step.blocks_free
        self._blocks_cached.set(step.blocks_cached / num_blocks)
        if running <= 0 and waiting <= 0:
            self._observe_idle()
            return
        self._running.set(running)
        self._waiting.set(max(0, waiting))
        self._blocks_used.set(step.blocks_used / num_blocks)
        for reason in _WAITING_REASONS:
            by_reason = self._waiting_by_reason.labels(self._model_name, reason)
            by_reason.set(step.waiting.get(reason, 0))

    def _observe_idle(self) -> None:
        """Nothing runs or waits, so nobody holds a block."""
        for gauge in (self._running, self._waiting, self._blocks_used):
            gauge.set(0)
        for reason in _WAITING_REASONS:
            self._waiting_by_reason.labels(self._model_name, reason).set(0)

    def _observe_work(self, step: StepRecord) -> None:
        self._step_duration.observe(step.duration_s)
        self._step_tokens.observe(step.num_tokens)
        self._steps_failed.inc(step.failed)
        self._evictions.inc(step.evictions)
        self._recomputed.inc(step.recomputed_tokens)
        self._discarded.inc(step.discarded_tokens)
        if step.num_draft_tokens:
            self._drafts.inc(sum(chunk.num_drafts > 0 for chunk in step.chunks))
            self._draft_tokens.inc(step.num_draft_tokens)
            self._accepted_tokens.inc(step.num_accepted_tokens)
        for cause, count in step.preemptions.items():
            self._preemptions.labels(self._model_name, cause).inc(count)
        self._swapped_out.inc(step.swapped_out_blocks)
        self._swapped_in.inc(step.swapped_in_blocks)
        for admission in step.admissions.values():
            again = admission.kind == "again"
            queries, hits = self._readmission_lookups if again else self._lookups
            queries.inc(admission.lookup_tokens)
            hits.inc(admission.hit_tokens)
        if step.admissions:  # else the rate is what it was
            self._recent_lookups.observe(step)
            rate = self._recent_lookups.first
            self._hit_rate.set(math.nan if rate is None else rate)

    def _observe_request(self, request: RequestRecord) -> None:
        self._ended.labels(self._model_name, request.finish_reason).inc()
        self._prompt_tokens.inc(request.num_prompt_tokens)
        self._generation_tokens.inc(request.num_output_tokens)
        self._prompt_length.observe(request.num_prompt_tokens)
        self._output_length.observe(request.num_output_tokens)
        self._e2e.observe(request.finished_s - request.arrival_s)
        if request.first_scheduled_s is not None:
            self._queue_time.observe(request.first_scheduled_s - request.arrival_s)
        if request.first_token_s is not None:
            self._ttft.observe(request.first_token_s - request.arrival_s)
            if request.num_output_tokens > 1:
                decoding_s = request.finished_s - request.first_token_s
                self._tpot.observe(decoding_s / (request.num_output_tokens - 1))

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests in the running batch")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be admitted")
        self._waiting_by_reason = Gauge(
            "headway:num_requests_waiting_by_reason",
            "Requests waiting, by what held up the head of the queue",
            ["model_name", "reason"],
            registry=self._registry,
        )
        self._blocks_used = self._gauge(
            "kv_cache_usage_perc", "Share of KV blocks that requests hold (1 is all)"
        )
        self._blocks_cached = self._gauge(
            "kv_cache_cached_perc", "Share of KV blocks that are free and can still be hit"
        )

        self._hit_rate = self._gauge(
            "prefix_cache_hit_rate",
            "Share of looked-up tokens found, over the last 1000 first admissions; NaN: none yet",
        )
        self._hit_rate.set(math.nan)

    def _make_counters(self) -> None:
        self._lookups = (
            self._counter("prefix_cache_queries", "Tokens looked up at first admissions"),
            self._counter("prefix_cache_hits", "Of those, tokens found in the prefix cache"),
        )
        self._readmission_lookups = (
            self._counter(
                "prefix_cache_readmission_queries", "Tokens looked up after a preemption"
            ),
            self._counter(
                "prefix_cache_readmission_hits", "Of those, tokens found in the prefix cache"
            ),
        )
        self._preemptions = self._labelled_counter(
            "num_preemptions", "Requests preempted, by cause", "cause", _PREEMPTION_CAUSES
        )
        self._ended = self._labelled_counter(
            "request_success", "Requests ended, by reason", "finished_reason", _FINISH_REASONS
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests")
        self._generation_tokens = self._counter(
            "generation_tokens", "Output tokens of ended requests"
        )
        self._evictions = self._counter("kv_cache_evictions", "Cached blocks taken for new tokens")
        self._recomputed = self._counter(
            "recomputed_tokens", "Tokens computed again after a preemption or a failed step"
        )
        self._swapped_out = self._counter(
            "swapped_out_blocks", "KV blocks copied to the swap space"
        )
        self._swapped_in = self._counter("swapped_in_blocks", "KV blocks copied back from it")
        self._discarded = self._counter(
            "discarded_tokens", "Tokens computed for requests that had ended, or in failed steps"
        )
        self._drafts = self._counter(
            "spec_decode_num_drafts", "Chunks of a step that ended in draft tokens"
        )
        self._draft_tokens = self._counter(
            "spec_decode_num_draft_tokens", "Draft tokens that steps checked"
        )
        self._accepted_tokens = self._counter(
            "spec_decode_num_accepted_tokens", "Of those, tokens that became output"
        )
        self._steps_failed = self._counter("steps_failed", "Steps that the executor failed")

    def _make_histograms(self) -> None:
        self._step_duration = self._histogram(
            "step_duration_seconds",
            "From making a plan, or the result before where later, to applying its result",
            _STEP_S,
        )
        self._step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens in a step, of prompts and outputs", _TOKENS
        )
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first output token", _LATENCY_S
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time between the output tokens of a request",
            _LATENCY_S,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end", _LATENCY_S
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival to the first admission", _LATENCY_S
        )
        self._prompt_length = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request", _TOKENS
        )
        self._output_length = self._histogram(
            "request_generation_tokens", "Output tokens of a request", _TOKENS
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"headway:{name}", text, ["model_name"], registry=self._registry)
        return gauge.labels(self._model_name)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"headway:{name}", text, ["model_name"], registry=self._registry)
        return counter.labels(self._model_name)

    def _labelled_counter(self, name: str, text: str, label: str, values: Sequence[str]) -> Counter:
        """Every known value is there from the start, at 0."""
        labels = ["model_name", label]
        counter = Counter(f"headway:{name}", text, labels, registry=self._registry)
        for value in values:
            counter.labels(self._model_name, value)
        return counter

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            f"headway:{name}", text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return histogram.labels(self._model_name)
