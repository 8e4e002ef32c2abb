"""One HTTP request and its answer, as logs, metrics and traces tell of them.

    Exchanges ─ makes ─▶ Exchange ◀─ note_… ─ whoever answers
        └─ at the end ─▶ Telemetry

What was asked and answered is not in it: lengths and counts are.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "CLIENT_GONE",
    "Exchange",
    "Exchanges",
    "current_exchange",
    "new_request_id",
]

CLIENT_GONE = 499
"""In place of a status, where a client left before one was sent; nginx writes the same."""

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(slots=True)
class Exchange:
    """Filled while the request is being answered."""

    request_id: str
    """The client's `X-Request-Id`, or one of our own."""
    method: str
    path: str
    """As it was sent, percent-encoded, without the query."""
    trace_parent: str | None = None
    """The client's `traceparent`: of which trace the request is a part."""
    route: str = "other"
    """What the path is one of; `other`: nothing that is there, or it was refused before."""
    status: int = CLIENT_GONE
    code: str | None = None
    """Of the error it came to, also one within a stream."""
    answer_id: str | None = None
    """The id that the answer shows; the engine's request ids begin with it."""
    num_prompt_tokens: int | None = None
    """None: nothing was asked of the model."""
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    duration_s: float = 0.0
    on_answer: Callable[[Exchange], None] = lambda _exchange: None

    def note_answer(self, answer_id: str) -> None:
        """The engine is to be asked for what the answer of that id will show."""
        self.answer_id = answer_id
        self.on_answer(self)

    def note_error(self, status: int, code: str | None) -> None:
        self.code = code or ("invalid_request" if status < 500 else "internal")

    def note_usage(self, num_prompt: int, num_cached: int, num_output: int) -> None:
        """Tokens in all, of all prompts and completions."""
        self.num_prompt_tokens = num_prompt
        self.num_cached_tokens = num_cached
        self.num_output_tokens = num_output


_current: ContextVar[Exchange | None] = ContextVar("headway_exchange", default=None)


def current_exchange() -> Exchange | None:
    """The one that is being answered here; None outside of a server."""
    return _current.get()


def new_request_id() -> str:
    return f"req-{uuid.uuid4().hex}"


class Exchanges:
    """ASGI middleware, the outermost: gives every request an id, and tells how it went.

    Args:
        on_end: told of each, once, when its last byte is sent or its client gone.
        on_answer: told of those that come to work for the engine, before that is asked.
        now: seconds on a monotonic clock.
        make_id: an id for a request that brings none.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_end: Callable[[Exchange], None],
        *,
        now: Callable[[], float],
        on_answer: Callable[[Exchange], None] = lambda _exchange: None,
        make_id: Callable[[], str] = new_request_id,
    ) -> None:
        self._app = app
        self._on_end = on_end
        self._on_answer = on_answer
        self._now = now
        self._make_id = make_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = self._now()
        exchange = self._begin(scope)
        header = exchange.request_id.encode()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                # The first is OpenAI's and most others', the second Anthropic's.
                ids = [(b"x-request-id", header), (b"request-id", header)]
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
            await send(message)

        token = _current.set(exchange)
        try:
            await self._app(scope, receive, sending)
        except Exception:
            exchange.status, exchange.code = 500, "internal"
            raise
        finally:
            _current.reset(token)
            exchange.route = _route(scope)
            exchange.duration_s = self._now() - began_s
            self._on_end(exchange)

    def _begin(self, scope: Scope) -> Exchange:
        headers = dict(scope["headers"])
        given, parent = headers.get(b"x-request-id", b""), headers.get(b"traceparent", b"")
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
        return Exchange(
            given.decode() if _REQUEST_ID.fullmatch(given) else self._make_id(),
            scope["method"],
            path.partition(b"?")[0].decode("ascii", "backslashreplace"),
            parent.decode() if _TRACE_PARENT.fullmatch(parent) else None,
            on_answer=self._on_answer,
        )


def _route(scope: Scope) -> str:
    """Of the routes of the application, the one that answered: there are only so many."""
    params: dict[str, object] | None = scope.get("path_params")
    if params is None:
        return "other"
    route = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    for name, value in params.items():
        route = route.removesuffix(str(value)) + f"{{{name}}}"
    return route
