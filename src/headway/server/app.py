"""The application: which path is answered by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.server.api.chat import ChatCompletions
from headway.server.api.completions import Completions
from headway.server.endpoint import GenerationEndpoint, model_not_found
from headway.server.errors import ApiError, to_api_error
from headway.server.generation import Endpoint, ServedEngine, ServedModel

__all__ = ["create_app"]


def create_app(
    engine: ServedEngine,
    model: ServedModel,
    *,
    metrics: Callable[[], bytes],
) -> Starlette:
    """The HTTP API of one engine, which its owner starts and stops.

    `metrics` gives what `/metrics` shows, in Prometheus' text format.
    """
    cards = [_card(model, name) for name in model.names]

    async def list_models(_request: Request) -> Response:
        return _json({"object": "list", "data": cards})

    async def show_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in model.names:
            return model_not_found(name, model).response()
        return _json(cards[model.names.index(name)])

    async def health(_request: Request) -> Response:
        if not engine.is_alive:
            return ApiError(503, "The engine has stopped.", code="engine_dead").response()
        return _json({"status": "ok"})

    async def export(_request: Request) -> Response:
        return Response(metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def generation(endpoint: Endpoint) -> GenerationEndpoint:
        return GenerationEndpoint(endpoint, engine, model)

    return Starlette(
        routes=[
            Route("/v1/completions", generation(Completions(model)), methods=["POST"]),
            Route("/v1/chat/completions", generation(ChatCompletions(model)), methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/health", health),
            Route("/metrics", export),
        ],
        exception_handlers={HTTPException: _no_such_route, Exception: _unexpected},
    )


def _card(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "headway",
        "max_model_len": model.max_model_len,
        "headway": {
            "exact": model.exactness.promised,
            "exactness": str(model.exactness),
        },
    }


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
