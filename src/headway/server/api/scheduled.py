"""What any body may say of when it is served."""

from __future__ import annotations

from typing import Any

from headway.errors import InvalidRequest
from headway.server.api.body import Body, Int, Name

__all__ = ["ScheduledBody"]

MAX_WAIT_MS = 24 * 3600 * 1000


class ScheduledBody(Body, kw_only=True):
    """A body that generates."""

    priority: Int | None = None
    cache_salt: Name | None = None
    deadline_ms: Int | None = None
    """Milliseconds from arrival to the first token, for the policy `deadline`."""
    queue_timeout_ms: Int | None = None
    """Milliseconds from arrival after which the request ends, if it was not begun."""

    def check(self) -> None:
        super().check()
        for field in ("deadline_ms", "queue_timeout_ms"):
            value = getattr(self, field)
            if value is not None and not 0 < value <= MAX_WAIT_MS:
                raise InvalidRequest(field, f"must be between 1 and {MAX_WAIT_MS}, not {value}")

    def scheduling(self) -> dict[str, Any]:
        """The same as fields of a `Job`."""
        return {
            "priority": self.priority or 0,
            "cache_salt": self.cache_salt,
            "deadline_s": _seconds(self.deadline_ms),
            "queue_timeout_s": _seconds(self.queue_timeout_ms),
        }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
