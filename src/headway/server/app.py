"""The application: which path is answered by what."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway import __version__
from headway.server.errors import ApiError, ErrorShape, error_shape, to_api_error
from headway.server.generation import ServedEngine, ServedModel
from headway.server.gets import always, gets
from headway.server.openapi import document
from headway.server.posts import posts

__all__ = ["create_app"]


def create_app(
    engine: ServedEngine,
    model: ServedModel,
    *,
    metrics: Callable[[], bytes],
    tidy: Callable[[], None] = lambda: None,
) -> Starlette:
    """The HTTP API of one engine, which its owner starts and stops.

    `metrics` gives what `/metrics` shows, in Prometheus' text format; `tidy` is called in the event
    loop some time after a large body.
    """
    paths = [*posts(engine, model, tidy), *gets(engine, model, metrics)]
    described = document((operation for operation, _ in paths), __version__)
    return Starlette(
        routes=[*(route for _, route in paths), Route("/openapi.json", always(described))],
        exception_handlers={
            ApiError: _failed,
            HTTPException: _no_such_route,
            Exception: _failed,
        },
    )


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {
        404: f"There is nothing at {request.url.path}.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    message = known.get(error.status_code, error.detail)
    api_error = ApiError(error.status_code, message, headers=error.headers)
    return api_error.response(_shape(request))


async def _failed(request: Request, error: Exception) -> Response:
    return to_api_error(error).response(_shape(request))


def _shape(request: Request) -> ErrorShape:
    root_path: str = request.scope.get("root_path", "")
    return error_shape(request.url.path.removeprefix(root_path))
