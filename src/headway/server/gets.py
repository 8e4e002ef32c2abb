"""The paths that take no body: what is served, and how it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway import __version__
from headway.server.api.models import Health, ModelCard, ModelList, Version, card
from headway.server.api.tokens import TokenizerInfo, tokenizer_info
from headway.server.errors import ApiError
from headway.server.generation import ServedEngine, ServedModel, check_model
from headway.server.openapi import Operation

__all__ = ["always", "gets"]

_Answer = Callable[[Request], Awaitable[Response]]


def gets(
    engine: ServedEngine, model: ServedModel, metrics: Callable[[], bytes]
) -> Iterator[tuple[Operation, Route]]:
    """`metrics` gives what `/metrics` shows."""
    cards = {name: card(model, name) for name in model.names}

    async def show_model(request: Request) -> Response:
        name = request.path_params["name"]
        check_model(name, model)
        return _json(cards[name])

    async def health(_request: Request) -> Response:
        if not engine.is_alive:
            raise ApiError(503, "The engine has stopped.", code="engine_dead")
        return _json(Health())

    async def export(_request: Request) -> Response:
        return Response(metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    for path, summary, kind, answer in (
        ("/v1/models", "The models", ModelList, always(ModelList(data=list(cards.values())))),
        ("/v1/models/{name:path}", "A model", ModelCard, show_model),
        ("/tokenizer_info", "The tokenizer", TokenizerInfo, always(tokenizer_info(model))),
        ("/version", "Headway's version", Version, always(Version(__version__))),
        ("/health", "Whether the server lives", Health, health),
        ("/ready", "Whether it is the one to send requests to", Health, health),
        ("/metrics", "Metrics, in Prometheus' text format", None, export),
    ):
        described = path.replace(":path", "")  # names of models have slashes
        operation = Operation(path=described, method="get", summary=summary, answer=kind)
        yield operation, Route(path, answer)


def always(content: object) -> _Answer:
    """Answers the same JSON every time."""
    response = msgspec.json.encode(content)

    async def answer(_request: Request) -> Response:
        return Response(response, media_type="application/json")

    return answer


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
