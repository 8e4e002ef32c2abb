"""A client's connection, which may not hold what it does not use."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MAX_HEADER_BYTES", "Connection"]

MAX_HEADER_BYTES = 32 * 1024
"""Of a request's first line and its headers."""
REQUEST_WITHIN_S = 20.0
"""From the connection, or the first byte of a further request, to the end of its headers."""
TAKES_WITHIN_S = 30.0
"""For a client to take what is ready for it (64 KiB here, beside what the system holds)."""


class Connection(H11Protocol):
    """Uvicorn's, closed when its client says nothing, or takes nothing, for long."""

    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._request_came()
        self._taken()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._expect_request()
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._request_came()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not `close`, which would wait until the client has taken what was written.
        self._write_timer = self.loop.call_later(TAKES_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def _expect_request(self) -> None:
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_WITHIN_S, self.transport.abort)

    def _request_came(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _taken(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
