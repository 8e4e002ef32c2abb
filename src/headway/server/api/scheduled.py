"""What any body may say of when it is served, and the job that it then is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headway.core.params import SamplingParams
from headway.errors import InvalidRequest
from headway.server.api.body import Body, Int, Name
from headway.server.generation import Job, Reply
from headway.text.parts import OutputParser, PlainText

__all__ = ["ScheduledBody", "job_of"]

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


class Generating(Protocol):
    """What a `ScheduledBody` has that is decoded into a `Job`."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def deadline_ms(self) -> int | None: ...
    @property
    def queue_timeout_ms(self) -> int | None: ...


def job_of(
    request: Generating,
    *,
    params: SamplingParams,
    reply: Reply,
    encode: Callable[[], Sequence[Sequence[int]]],
    names: Mapping[str, str],
    tenant: str | None,
    parser: Callable[[], OutputParser] = PlainText,
    num_prompts: int = 1,
) -> Job:
    """Of any API's body. The arguments are fields of the `Job`."""
    return Job(
        model=request.model,
        stream=bool(request.stream),
        params=params,
        encode=encode,
        names=names,
        reply=reply,
        parser=parser,
        num_prompts=num_prompts,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        tenant=tenant or "",
        deadline_s=_seconds(request.deadline_ms),
        queue_timeout_s=_seconds(request.queue_timeout_ms),
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
