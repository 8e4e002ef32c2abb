"""Server-sent events."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DONE", "Event"]


class Event(NamedTuple):
    """One server-sent event."""

    data: bytes
    name: str = ""
    """Of its type; none in OpenAI's older APIs."""

    def encode(self) -> bytes:
        if self.name:
            return b"event: %b\ndata: %b\n\n" % (self.name.encode(), self.data)
        return b"data: %b\n\n" % self.data


DONE = Event(b"[DONE]")
