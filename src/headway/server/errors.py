"""What went wrong, as HTTP: the one place where a status is chosen."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.responses import Response

from headway.errors import EngineDead, InvalidRequest, QueueFull, RequestTooLarge
from headway.server.event import Event

__all__ = ["OPENAI_ERRORS", "ApiError", "ErrorShape", "bad_request", "to_api_error"]

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
        shape = shape or OPENAI_ERRORS
        return Response(shape.body(self), shape.status(self), self.headers, "application/json")


class ErrorShape(Protocol):
    """How an API says what went wrong."""

    def status(self, error: ApiError) -> int: ...

    def body(self, error: ApiError) -> bytes: ...

    def event(self, error: ApiError) -> Event:
        """In a stream that has begun; nothing follows it."""
        ...


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

    def event(self, error: ApiError) -> Event:
        return Event(self.body(error))


OPENAI_ERRORS: ErrorShape = _OpenAIErrors()


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def to_api_error(error: Exception) -> ApiError:
    """The client's view of whatever was raised; what was not foreseen is logged here."""
    match error:
        case ApiError():
            return error
        case RequestTooLarge():
            code = "context_length_exceeded" if error.field == "prompt" else "request_too_large"
            return bad_request(str(error), error.field, code)
        case InvalidRequest():
            return bad_request(str(error), error.field)
        case QueueFull():
            return ApiError(
                429, str(error), code="queue_full", headers=_retry_after(error.retry_after_s)
            )
        case EngineDead():
            return ApiError(503, str(error), code="engine_dead")
    _logger.error("a request failed for no reason of its own", exc_info=error)
    return ApiError(500, "The server failed on this request; its log says more.", code="internal")


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}
