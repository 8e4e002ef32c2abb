from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from headway.server.security import ApiKeys, allow_origins, require_keys

KEYS = ("first-key", "zweiter-schlüssel")
PATHS = ("/health", "/ready", "/metrics", "/v1/models", "/v1/messages", "/openapi.json", "/absent")


async def _ok(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def application() -> Starlette:
    return Starlette(routes=[Route(path, _ok, methods=["GET", "POST"]) for path in PATHS[:-1]])


def ask(
    app: ASGIApp, path: str, headers: Mapping[str, str | bytes] = {}, *, method: str = "GET",
    root_path: str = "",
) -> httpx.Response:  # fmt: skip
    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, root_path + path, headers=headers)  # type: ignore[arg-type]

    return asyncio.run(request())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PATCH"])
def test_without_a_key_only_what_watches_the_server_is_open(path: str, method: str) -> None:
    status = ask(require_keys(application(), KEYS), path, method=method).status_code
    assert (status != 401) == (path in ("/health", "/ready"))


def test_metrics_are_open_where_the_operator_says_so_and_nothing_else_is() -> None:
    app = require_keys(application(), KEYS, metrics_no_auth=True)
    assert [path for path in PATHS if ask(app, path).status_code != 401] == [
        "/health", "/ready", "/metrics",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer first-key"}, 200),
        ({"authorization": "bearer  first-key "}, 200),
        ({"x-api-key": "first-key"}, 200),
        ({"x-api-key": "zweiter-schlüssel".encode()}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": "first-key"}, 200),
        ({"Authorization": "Bearer first-ke"}, 401),
        ({"Authorization": "Bearer first-keyy"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic first-key"}, 401),
        ({"Authorization": "first-key"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "first-key,zweiter-schlüssel".encode()}, 401),
        ({"Cookie": "x-api-key=first-key"}, 401),
    ],
)
def test_a_key_is_good_in_either_header_and_only_whole(
    headers: dict[str, str | bytes], status: int
) -> None:
    assert ask(require_keys(application(), KEYS), "/v1/models", headers).status_code == status


def test_a_refusal_has_the_shape_of_the_path_and_shows_no_key() -> None:
    app = require_keys(application(), KEYS)
    openai = ask(app, "/v1/models", {"x-api-key": "guess"})
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert openai.headers["www-authenticate"] == "Bearer"
    anthropic = ask(app, "/v1/messages", {"x-api-key": "guess"}).json()
    assert anthropic["error"]["type"] == "authentication_error"
    for text in (openai.text, json.dumps(anthropic)):
        assert not [key for key in (*KEYS, "guess") if key in text]


def test_under_a_root_path_the_same_paths_are_open() -> None:
    app = require_keys(application(), KEYS)
    assert ask(app, "/health", root_path="/llm").status_code == 200
    assert ask(app, "/v1/models", root_path="/llm").status_code == 401
    assert ask(app, "/health/../v1/models").status_code == 401


def test_no_keys_ask_for_none() -> None:
    assert ask(require_keys(application(), ()), "/v1/models").status_code == 200


def test_keys_are_not_kept() -> None:
    assert not [key for key in KEYS if key in repr(vars(ApiKeys(KEYS)))]


ORIGIN = "https://chat.example.org"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((ORIGIN,), ORIGIN, True),
        ((ORIGIN,), "https://evil.example.org", False),
        (("*",), "https://evil.example.org", True),
        ((), ORIGIN, False),
    ],
)
def test_a_browser_is_let_in_from_the_origins_that_are_allowed(
    origins: tuple[str, ...], origin: str, allowed: bool
) -> None:
    app = allow_origins(require_keys(application(), KEYS), origins)
    for method, more in (("OPTIONS", PREFLIGHT), ("GET", {"x-api-key": KEYS[0]})):
        response = ask(app, "/v1/models", {"Origin": origin, **more}, method=method)
        assert (response.headers.get("access-control-allow-origin") in (origin, "*")) == allowed
        assert response.is_success == (allowed or method == "GET")
        assert "access-control-allow-credentials" not in response.headers
