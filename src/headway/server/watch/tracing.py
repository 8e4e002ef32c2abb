"""Requests as OpenTelemetry traces (`--otlp-traces-endpoint`, an extra).

A span tells of a request in the engine, from its arrival to its end, and has a child for each
stage: `queue`, `prefill`, `decode`. It is part of the trace that the client's `traceparent` names.
Attributes are those of the semantic conventions for generative AI, and vLLM's `gen_ai.latency.…`
for what they lack. Lengths are told, content is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from headway.errors import InvalidConfig
from headway.metrics import RequestRecord
from headway.server.watch.stats import StepStats

__all__ = ["Tracing", "export_to"]

_MOST_PARENTS = 16_384
"""Requests at once whose trace is remembered; the oldest are forgotten first."""
_SENT_WITHIN_S = 3.0
"""Spans that nobody takes for so long are dropped; the end of the server waits no longer."""
_NS = 1_000_000_000
_DONE = ("stop", "length")


class Tracing:
    """Takes the engine's `StepStats`, and what requests are part of.

    Args:
        provider: an OpenTelemetry `TracerProvider`, whose owner shuts it down.
        epoch_s: Unix time in seconds less the engine's clock.
    """

    def __init__(self, provider: Any, model_name: str, *, epoch_s: float) -> None:
        from opentelemetry import trace  # noqa: PLC0415  an extra
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        self._trace = trace
        self._read_parent: Callable[..., Any] = TraceContextTextMapPropagator().extract
        self._tracer = provider.get_tracer("headway")
        self._model_name = model_name
        self._epoch_s = epoch_s
        self._parents: OrderedDict[str, str] = OrderedDict()

    def follow(self, answer_id: str, trace_parent: str) -> None:
        """The engine's requests that are part of that answer are part of that trace."""
        self._parents[answer_id] = trace_parent
        if len(self._parents) > _MOST_PARENTS:
            self._parents.popitem(last=False)

    def observe(self, stats: StepStats) -> None:
        for request in stats.ended:
            self._span(request)

    def _span(self, request: RequestRecord) -> None:
        operation = "text_completion" if request.request_id.startswith("cmpl") else "chat"
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            context=self._parent(request.request_id),
            kind=self._trace.SpanKind.SERVER,
            attributes={"gen_ai.operation.name": operation, **self._attributes(request)},
            start_time=self._ns(request.arrival_s),
        )
        within = self._trace.set_span_in_context(span)
        times = (
            request.arrival_s,
            request.first_scheduled_s,
            request.first_token_s,
            request.finished_s,
        )
        stages = ("queue", "prefill", "decode")
        for name, (begin_s, end_s) in zip(stages, pairwise(times), strict=True):
            if begin_s is None:
                break
            stage = self._tracer.start_span(name, context=within, start_time=self._ns(begin_s))
            stage.end(self._ns(request.finished_s if end_s is None else end_s))
        if request.finish_reason not in _DONE:
            span.set_attribute("error.type", request.finish_reason)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(self._ns(request.finished_s))

    def _parent(self, request_id: str) -> Any:
        """The context of the trace that the request is part of. Its id is its answer's, and
        where there are several prompts or completions, the number of each."""
        name = request_id
        while name not in self._parents:
            name, dash, number = name.rpartition("-")
            if not (dash and number.isdecimal()):
                return None
        return self._read_parent({"traceparent": self._parents[name]})

    def _attributes(self, request: RequestRecord) -> dict[str, Any]:
        times = {
            "gen_ai.latency.time_in_queue": request.first_scheduled_s,
            "gen_ai.latency.time_to_first_token": request.first_token_s,
            "gen_ai.latency.e2e": request.finished_s,
        }
        return {
            "gen_ai.provider.name": "headway",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.id": request.request_id,
            "gen_ai.response.finish_reasons": (request.finish_reason,),
            "gen_ai.usage.input_tokens": request.num_prompt_tokens,
            "gen_ai.usage.output_tokens": request.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens,
            "headway.num_preemptions": request.num_preemptions,
            **{
                name: time_s - request.arrival_s
                for name, time_s in times.items()
                if time_s is not None
            },
        }

    def _ns(self, time_s: float) -> int:
        return int((time_s + self._epoch_s) * _NS)


def export_to(endpoint: str) -> Any:
    """A `TracerProvider` that sends spans to `endpoint`, from a thread of its own; it is to be
    shut down at the end, which sends what is left.

    Raises InvalidConfig where the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise InvalidConfig(
            "otlp_traces_endpoint", f"needs pip install 'headway[otel]' ({error})"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "headway"}))
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_SENT_WITHIN_S))
    )
    return provider
