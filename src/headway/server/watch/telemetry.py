"""All that watches over a server, composed: metrics, logs, traces, and the way in that feeds them.

client ─▶ Exchanges ─▶ CORS ─▶ keys ─▶ the gate and the API
             └─ Exchange ─▶ access log, HTTP's metrics
engine ─ StepStats ─▶ metrics, state log, traces
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from starlette.types import ASGIApp

from headway.server.security import allow_origins, require_keys
from headway.server.settings import ServerSettings
from headway.server.watch.access_log import log_access
from headway.server.watch.exchange import Exchange, Exchanges
from headway.server.watch.http_metrics import HttpMetrics
from headway.server.watch.instruments import Instruments
from headway.server.watch.prometheus import PrometheusMetrics
from headway.server.watch.state_log import StateLog
from headway.server.watch.stats import CacheInfo, StepStats
from headway.server.watch.tracing import Tracing, export_to

__all__ = ["Telemetry"]


class Telemetry:
    """What `settings` ask for. The model is not known at once: requests are taken, and refused,
    before it is.

    All is for the event loop. Raises InvalidConfig where traces are asked for and cannot be sent.

    Args:
        now: seconds on the engine's clock.
        epoch_s: Unix time in seconds less that clock.
    """

    def __init__(
        self, settings: ServerSettings, *, now: Callable[[], float], epoch_s: float
    ) -> None:
        self._settings = settings
        self._now = now
        self._epoch_s = epoch_s
        self._started_s = epoch_s + now()
        endpoint = settings.otlp_traces_endpoint
        self._provider: Any = None if endpoint is None else export_to(endpoint)
        self._tracing: Tracing | None = None
        self._state_log = StateLog() if settings.log_stats else None
        self._http_metrics: HttpMetrics | None = None
        self._instruments: Instruments | None = None
        self._metrics: PrometheusMetrics | None = None

    def wrap(self, app: ASGIApp, keys: Collection[str]) -> ASGIApp:
        """`app` for those who have a key, with all that they ask of it watched. No keys:
        everybody may."""
        guarded = require_keys(app, keys, metrics_no_auth=self._settings.metrics_no_auth)
        origins = self._settings.allowed_origins
        return Exchanges(
            allow_origins(guarded, origins), self._ended, now=self._now, on_answer=self._answers
        )

    def model_opened(self, name: str, *, by_tenant: bool) -> None:
        """From now on there are metrics and traces. `by_tenant` as in `PrometheusMetrics`."""
        self._instruments = Instruments(name, self._settings.metrics_namespace)
        self._instruments.process_started(self._started_s)
        self._metrics = PrometheusMetrics(self._instruments, by_tenant=by_tenant)
        self._http_metrics = HttpMetrics(self._instruments)
        if self._provider is not None:
            self._tracing = Tracing(self._provider, name, epoch_s=self._epoch_s)

    def engine_started(self, cache: CacheInfo) -> None:
        assert self._metrics is not None
        self._metrics.engine_started(cache)

    def engine_lost(self) -> None:
        assert self._metrics is not None
        self._metrics.engine_lost()

    def observe(self, stats: StepStats) -> None:
        assert self._metrics is not None
        self._metrics.observe(stats)
        if self._state_log is not None:
            self._state_log.observe(stats)
        if self._tracing is not None:
            self._tracing.observe(stats)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        assert self._instruments is not None
        return self._instruments.render()

    def close(self) -> None:
        """Sends the traces that were not sent yet."""
        if self._provider is not None:
            self._provider.shutdown()

    def _answers(self, exchange: Exchange) -> None:
        if self._tracing is not None and exchange.answer_id and exchange.trace_parent:
            self._tracing.follow(exchange.answer_id, exchange.trace_parent)

    def _ended(self, exchange: Exchange) -> None:
        if self._http_metrics is not None:
            self._http_metrics.count(exchange)
        if self._settings.access_log:
            log_access(exchange)
