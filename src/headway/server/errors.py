"""What went wrong, as HTTP: the one place where a status is chosen."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import ClassVar, Protocol

import msgspec
from starlette.responses import Response

from headway.errors import EngineDead, InvalidRequest, QueueFull, RequestTooLarge
from headway.server.watch.exchange import current_exchange

__all__ = [
    "ANTHROPIC_ERRORS",
    "OPENAI_ERRORS",
    "ApiError",
    "ErrorShape",
    "bad_request",
    "error_shape",
    "to_api_error",
]

_logger = logging.getLogger(__name__)

_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """An error as the client sees it; an `ErrorShape` gives it the form.

    Attributes:
        status: the HTTP status.
        param: the path of the offending field in the body, or None.
        code: a word for programs, e.g. `context_length_exceeded`, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    def response(self, shape: ErrorShape | None = None) -> Response:
        """In OpenAI's shape unless told otherwise."""
        _note(self)
        shape = shape or OPENAI_ERRORS
        return Response(shape.body(self), shape.status(self), self.headers, "application/json")


class ErrorShape(Protocol):
    """How an API says what went wrong."""

    def status(self, error: ApiError) -> int: ...

    def body(self, error: ApiError) -> bytes: ...


class _OpenAIErrors:
    def status(self, error: ApiError) -> int:
        return error.status

    def body(self, error: ApiError) -> bytes:
        content = {
            "message": str(error),
            "type": _TYPES.get(error.status, "invalid_request_error"),
            "param": error.param,
            "code": error.code,
        }
        return msgspec.json.encode({"error": content})


class _AnthropicErrors:
    """Its statuses are HTTP's but for one: 529 where others say 503."""

    _types: ClassVar[Mapping[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
        504: "timeout_error",
    }

    def status(self, error: ApiError) -> int:
        return 529 if error.status == 503 else error.status

    def body(self, error: ApiError) -> bytes:
        kind = self._types.get(error.status, "invalid_request_error")
        return msgspec.json.encode(
            {"type": "error", "error": {"type": kind, "message": str(error)}}
        )


OPENAI_ERRORS: ErrorShape = _OpenAIErrors()
ANTHROPIC_ERRORS: ErrorShape = _AnthropicErrors()


def error_shape(path: str) -> ErrorShape:
    """What the clients of a path expect."""
    return ANTHROPIC_ERRORS if path.startswith("/v1/messages") else OPENAI_ERRORS


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def to_api_error(error: Exception) -> ApiError:
    """The client's view of whatever was raised; what was not foreseen is logged here."""
    api_error = _translated(error)
    _note(api_error)
    return api_error


def _note(error: ApiError) -> None:
    """For the logs and the metrics of the request that it ends."""
    exchange = current_exchange()
    if exchange is not None:
        exchange.note_error(error.status, error.code)


def _translated(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case RequestTooLarge():
            code = "context_length_exceeded" if error.field == "prompt" else "request_too_large"
            return bad_request(str(error), error.field, code)
        case InvalidRequest():
            return bad_request(str(error), error.field)
        case QueueFull():
            # A queue that has not moved yet says nothing of when it will.
            headers = _retry_after(error.retry_after_s or 0.0)
            return ApiError(429, str(error), code="queue_full", headers=headers)
        case EngineDead():
            return ApiError(
                503, str(error), code="engine_dead", headers=_retry_after(error.retry_after_s)
            )
    exchange = current_exchange()
    fields = {} if exchange is None else {"request_id": exchange.request_id}
    _logger.error(
        "a request failed for no reason of its own", exc_info=error, extra={"fields": fields}
    )
    where = "" if exchange is None else f", under {exchange.request_id}"
    message = f"The server failed on this request; its log says more{where}."
    return ApiError(500, message, code="internal")


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}
