"""The application: which path is answered by what."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.engine.async_engine import AsyncEngine
from headway.server.endpoint import (
    ChatCompletions,
    Completions,
    GenerationEndpoint,
    model_not_found,
)
from headway.server.errors import ApiError, to_api_error
from headway.server.prometheus import PrometheusMetrics

__all__ = ["create_app"]


def create_app(engine: AsyncEngine, *, served_model_name: str, created: int) -> Starlette:
    """The HTTP API of one engine, which its owner starts and stops.

    `served_model_name` is what clients put in `model`; `created` is the Unix time that
    `/v1/models` gives for it. The engine gets an observer that feeds `/metrics`.
    """
    metrics = PrometheusMetrics(served_model_name)
    engine.add_observer(metrics)
    card = {
        "id": served_model_name,
        "object": "model",
        "created": created,
        "owned_by": "headway",
        "max_model_len": engine.max_model_len,
        "headway": {
            "exact": engine.exactness.promised,
            "exactness": str(engine.exactness),
        },
    }

    async def models(_request: Request) -> Response:
        return _json({"object": "list", "data": [card]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != served_model_name:
            return model_not_found(name, served_model_name).response()
        return _json(card)

    async def health(_request: Request) -> Response:
        if not engine.is_alive:
            return ApiError(503, "The engine has stopped.", code="engine_dead").response()
        return _json({"status": "ok"})

    async def export(_request: Request) -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    completions = GenerationEndpoint(Completions(), engine, served_model_name)
    chat = GenerationEndpoint(ChatCompletions(), engine, served_model_name)
    return Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/metrics", export),
        ],
        exception_handlers={HTTPException: _no_such_route, Exception: _unexpected},
    )


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {
        404: f"There is nothing at {request.url.path}.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    message = known.get(error.status_code, error.detail)
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _unexpected(_request: Request, error: Exception) -> Response:
    return to_api_error(error).response()
