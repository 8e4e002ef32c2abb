"""What the server answered, as Prometheus metrics."""

from __future__ import annotations

from headway.server.watch.exchange import Exchange
from headway.server.watch.instruments import Instruments

__all__ = ["HttpMetrics"]

_MOST_SERIES = 256


class HttpMetrics:
    """Counts what it is told of."""

    def __init__(self, instruments: Instruments) -> None:
        self._requests = instruments.bounded(
            "http_requests",
            "HTTP requests answered, by route and status (499: the client left before)",
            ("route", "status"),
            _MOST_SERIES,
        )
        self._errors = instruments.bounded(
            "request_errors",
            "Requests that came to an error, in a stream too, by its code",
            ("code",),
            _MOST_SERIES,
        )

    def count(self, exchange: Exchange) -> None:
        self._requests.add(1, exchange.route, str(exchange.status))
        if exchange.code is not None:
            self._errors.add(1, exchange.code)
