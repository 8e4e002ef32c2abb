"""What the engine does, as Prometheus metrics; docs/guide/metrics.md has them all.

Names, labels and meanings are vLLM's where it has the metric. Buckets are vLLM's too, with finer
ones below where a small model on a CPU is quicker than theirs tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from headway.core.step import WAITING_REASONS
from headway.metrics import EngineState, RequestRecord
from headway.server.watch.instruments import Instruments
from headway.server.watch.stats import CacheInfo, StepStats, StepWork

__all__ = ["PrometheusMetrics"]

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_BUDGET_SHARE = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_REQUEST_TOKENS = tuple(
    digit * 10**power for power in range(6) for digit in (1, 2, 5) if digit * 10**power <= 200_000
)
_DEFERRED = ("prefix", "isolated")
"""Reasons to wait that vLLM calls `deferred`; the others are `capacity` to it."""
_PREEMPTION_CAUSES = ("memory", "priority")
_FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")
_MOST_TENANTS = 32


class PrometheusMetrics:
    """Takes the engine's `StepStats`. For one thread at a time; render it in any.

    Args:
        by_tenant: count what each tenant gets: of use where requests say whose they are, and not
            where `user` is anything that a client makes up.
    """

    def __init__(self, instruments: Instruments, *, by_tenant: bool = False) -> None:
        self._instruments = instruments
        self._by_tenant = by_tenant
        self._block_bytes = 0
        self._num_starts = 0
        self._make_state(instruments)
        self._make_counters(instruments)
        self._make_own_counters(instruments)
        self._make_histograms(instruments)
        self._make_request_histograms(instruments)

    def engine_started(self, cache: CacheInfo) -> None:
        """An engine takes requests: the first, or one in the place of one that is gone."""
        self._block_bytes = cache.block_bytes
        self._num_starts += 1
        if self._num_starts > 1:
            self._restarts.inc()
            return
        self._instruments.info(
            "cache_config_info",
            "The KV cache, in labels",
            {
                "block_size": str(cache.block_size),
                "num_gpu_blocks": str(cache.num_blocks),
                "cache_dtype": cache.dtype,
                "enable_prefix_caching": str(cache.prefix_caching),
            },
        )

    def engine_lost(self) -> None:
        """Nothing runs, waits or is held any more; counters stay."""
        self._show_waiting(0, "")
        for gauge in (self._running, self._blocks_used, self._blocks_cached):
            gauge.set(0)
        self._hit_rate.set(math.nan)

    def observe(self, stats: StepStats) -> None:
        self._show_state(stats.state, stats.waiting_for)
        self._hit_rate.set(math.nan if stats.hit_rate is None else stats.hit_rate)
        if stats.work is not None:
            self._count(stats.work)
        for request in stats.ended:
            self._end(request)

    def _show_state(self, state: EngineState, waiting_for: str) -> None:
        self._running.set(state.num_running)
        self._show_waiting(state.num_waiting, waiting_for)
        num_blocks = state.blocks_used + state.blocks_cached + state.blocks_free
        self._blocks_used.set(state.blocks_used / num_blocks)
        self._blocks_cached.set(state.blocks_cached / num_blocks)

    def _show_waiting(self, number: int, waiting_for: str) -> None:
        self._waiting.set(number)
        for reason, gauge in self._waiting_by_reason.items():
            gauge.set(number if reason == waiting_for else 0)
        if self._waiting_for_vllm:
            deferred = waiting_for in _DEFERRED
            self._waiting_for_vllm["deferred"].set(number if deferred else 0)
            self._waiting_for_vllm["capacity"].set(0 if deferred else number)

    def _count(self, work: StepWork) -> None:
        self._step_duration.observe(work.duration_s)
        self._step_tokens.observe(work.num_tokens)
        self._budget_used.observe(work.num_tokens / work.budget)
        hits = work.first[1]
        self._prompt_tokens.inc(work.num_prompt_tokens + hits)
        self._prompt_by_source["local_compute"].inc(work.num_prompt_tokens)
        self._prompt_by_source["local_cache_hit"].inc(hits)
        self._prompt_cached.inc(hits)
        self._generation_tokens.inc(work.num_output_tokens)
        for cause, count in work.preemptions.items():
            self._preemptions.inc(count)
            self._preemptions_by_cause[cause].inc(count)
        for counters, amounts in (
            (self._lookups, work.first),
            (self._readmission_lookups, work.again),
        ):
            for counter, amount in zip(counters, amounts, strict=True):
                counter.inc(amount)
        self._evictions.inc(work.evictions)
        self._recomputed.inc(work.recomputed_tokens)
        self._discarded.inc(work.discarded_tokens)
        self._swapped["out"].inc(work.swapped_out_blocks * self._block_bytes)
        self._swapped["in"].inc(work.swapped_in_blocks * self._block_bytes)
        self._drafts.inc(work.num_drafts)
        self._draft_tokens.inc(work.num_draft_tokens)
        self._accepted_tokens.inc(work.num_accepted_tokens)
        self._steps_failed.inc(work.failed)
        for gap_s, count in work.gaps:
            for _ in range(count):
                self._token_latency.observe(gap_s)

    def _end(self, request: RequestRecord) -> None:
        self._ended[request.finish_reason].inc()
        self._prompt_length.observe(request.num_prompt_tokens)
        self._output_length.observe(request.num_output_tokens)
        self._output_limit.observe(request.max_tokens)
        self._e2e.observe(request.finished_s - request.arrival_s)
        if self._by_tenant:
            self._tenant_requests.add(1, request.tenant)
            self._tenant_tokens["prompt"].add(request.num_prompt_tokens, request.tenant)
            self._tenant_tokens["generation"].add(request.num_output_tokens, request.tenant)
        if request.first_scheduled_s is None:
            return
        self._queue_time.observe(request.first_scheduled_s - request.arrival_s)
        self._inference_time.observe(request.finished_s - request.first_scheduled_s)
        self._computed_length.observe(request.num_prompt_tokens - request.num_cached_tokens)
        if request.first_token_s is None:
            return
        self._ttft.observe(request.first_token_s - request.arrival_s)
        self._prefill_time.observe(request.first_token_s - request.first_scheduled_s)
        decoding_s = request.finished_s - request.first_token_s
        self._decode_time.observe(decoding_s)
        if request.num_output_tokens > 1:
            self._tpot.observe(decoding_s / (request.num_output_tokens - 1))

    def _make_state(self, make: Instruments) -> None:
        self._running = make.gauge("num_requests_running", "Requests in the running batch")
        self._waiting = make.gauge("num_requests_waiting", "Requests waiting to be admitted")
        text = "Requests waiting, by what holds up the head of the queue"
        name = "num_requests_waiting_by_reason"
        self._waiting_by_reason = make.gauges(name, text, "reason", WAITING_REASONS, own=True)
        self._waiting_for_vllm: Mapping[str, Gauge] = {}
        if make.namespace != "headway":  # where the reasons are others
            values = ("capacity", "deferred")
            self._waiting_for_vllm = make.gauges(name, text, "reason", values)
        self._blocks_used = make.gauge(
            "kv_cache_usage_perc", "Share of KV blocks that requests hold (1 is all)"
        )
        self._blocks_cached = make.gauge(
            "kv_cache_cached_perc",
            "Share of KV blocks that nobody holds and the prefix cache can still hit",
            own=True,
        )
        self._hit_rate = make.gauge(
            "prefix_cache_hit_rate",
            "Share of looked-up tokens found, over the last 1000 first admissions; NaN: none yet",
            own=True,
        )
        self._hit_rate.set(math.nan)

    def _make_counters(self, make: Instruments) -> None:
        self._prompt_tokens = make.counter(
            "prompt_tokens", "Prompt tokens computed, or found in the prefix cache"
        )
        self._prompt_by_source = make.counters(
            "prompt_tokens_by_source",
            "Prompt tokens, by where their KV came from",
            "source",
            ("local_compute", "local_cache_hit"),
        )
        self._prompt_cached = make.counter(
            "prompt_tokens_cached", "Prompt tokens found in the prefix cache"
        )
        self._generation_tokens = make.counter("generation_tokens", "Output tokens")
        self._ended = make.counters(
            "request_success", "Requests ended, by reason", "finished_reason", _FINISH_REASONS
        )
        self._preemptions = make.counter("num_preemptions", "Requests preempted")
        self._lookups = (
            make.counter("prefix_cache_queries", "Tokens looked up at first admissions"),
            make.counter("prefix_cache_hits", "Of those, tokens found in the prefix cache"),
        )
        self._drafts = make.counter(
            "spec_decode_num_drafts", "Chunks of a step that ended in draft tokens"
        )
        self._draft_tokens = make.counter(
            "spec_decode_num_draft_tokens", "Draft tokens that steps checked"
        )
        self._accepted_tokens = make.counter(
            "spec_decode_num_accepted_tokens", "Of those, tokens that became output"
        )

    def _make_own_counters(self, make: Instruments) -> None:
        def counter(name: str, text: str) -> Counter:
            return make.counter(name, text, own=True)

        self._preemptions_by_cause = make.counters(
            "num_preemptions_by_cause",
            "Requests preempted, by cause",
            "cause",
            _PREEMPTION_CAUSES,
            own=True,
        )
        self._readmission_lookups = (
            counter("prefix_cache_readmission_queries", "Tokens looked up after a preemption"),
            counter("prefix_cache_readmission_hits", "Of those, tokens found"),
        )
        self._evictions = counter("kv_cache_evictions", "Cached blocks taken for new tokens")
        self._recomputed = counter(
            "recomputed_tokens", "Tokens computed again after a preemption or a failed step"
        )
        self._discarded = counter(
            "discarded_tokens", "Tokens computed for requests that had ended, or in failed steps"
        )
        self._swapped = make.counters(
            "swapped_bytes",
            "KV copied to the swap space, and back",
            "direction",
            ("out", "in"),
            own=True,
        )
        self._steps_failed = counter("steps_failed", "Steps that the executor failed")
        self._restarts = counter("engine_restarts", "Engines started after one that was gone")
        self._tenant_requests = make.bounded(
            "tenant_requests", "Requests ended, by tenant", ("tenant",), _MOST_TENANTS
        )
        self._tenant_tokens = {
            kind: make.bounded(
                f"tenant_{kind}_tokens",
                f"{kind.capitalize()} tokens of ended requests, by tenant",
                ("tenant",),
                _MOST_TENANTS,
            )
            for kind in ("prompt", "generation")
        }

    def _make_histograms(self, make: Instruments) -> None:
        self._step_duration = make.histogram(
            "step_duration_seconds",
            "From making a plan, or the result before where later, to applying its result",
            _STEP_S,
            own=True,
        )
        self._step_tokens = make.histogram(
            "iteration_tokens_total", "Tokens in a step, of prompts and outputs", _STEP_TOKENS
        )
        self._budget_used = make.histogram(
            "step_budget_usage",
            "Share of max_num_batched_tokens that a step used (1 is all)",
            _BUDGET_SHARE,
            own=True,
        )
        self._token_latency = make.histogram(
            "inter_token_latency_seconds", "Between two output tokens of a request", _TOKEN_S
        )

    def _make_request_histograms(self, make: Instruments) -> None:
        def seconds(name: str, text: str) -> Histogram:
            return make.histogram(name, text, _REQUEST_S)

        def tokens(name: str, text: str) -> Histogram:
            return make.histogram(name, text, _REQUEST_TOKENS)

        self._ttft = make.histogram(
            "time_to_first_token_seconds", "From arrival to the first output token", _TTFT_S
        )
        self._tpot = make.histogram(
            "request_time_per_output_token_seconds",
            "Mean time between the output tokens of a request",
            _TOKEN_S,
        )
        self._e2e = seconds("e2e_request_latency_seconds", "From arrival to the end")
        self._queue_time = seconds(
            "request_queue_time_seconds", "From arrival to the first admission"
        )
        self._inference_time = seconds(
            "request_inference_time_seconds", "From the first admission to the end"
        )
        self._prefill_time = seconds(
            "request_prefill_time_seconds", "From the first admission to the first output token"
        )
        self._decode_time = seconds(
            "request_decode_time_seconds", "From the first output token to the end"
        )
        self._prompt_length = tokens("request_prompt_tokens", "Prompt tokens of a request")
        self._computed_length = tokens(
            "request_prefill_kv_computed_tokens", "Of those, tokens not found in the prefix cache"
        )
        self._output_length = tokens("request_generation_tokens", "Output tokens of a request")
        self._output_limit = tokens(
            "request_params_max_tokens", "Output tokens that a request could have had"
        )
