"""What the server answers at each stage of its life: while it loads, while it drains.

    loading ─ open ─▶ serving ─ drain ─▶ draining

`/health` says that the server lives, so it is 200 while it loads and while it drains; `/ready` says
whether it is the one to send requests to.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.server.errors import ApiError, error_shape

__all__ = ["Gate"]

_RETRY_AFTER_S = 5
"""A guess: what a start takes, here or of whoever comes after."""


class Gate:
    """An ASGI application before the application, which is there once the model is loaded.

    Attributes:
        num_active: requests that are being answered; to be read.
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._draining = False
        self.num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, app: ASGIApp) -> None:
        """From now on `app` answers."""
        self._app = app

    def drain(self) -> None:
        """From now on no request is taken that would begin work."""
        self._draining = True

    async def idle(self) -> None:
        """Returns once no request is being answered."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._app is None:
            await _while_loading(path)(scope, receive, send)
        elif self._draining and (scope["method"] == "POST" or path == "/ready"):
            await _refusal(path, "draining", "The server is shutting down.")(scope, receive, send)
        else:
            await self._answer(self._app, scope, receive, send)

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_active += 1
        self._idle.clear()
        try:
            await app(scope, receive, send)
        finally:
            self.num_active -= 1
            if not self.num_active:
                self._idle.set()


def _while_loading(path: str) -> Response:
    if path == "/health":
        return Response(b'{"status":"ok"}', media_type="application/json")
    return _refusal(path, "loading", "The server is loading its model.")


def _refusal(path: str, code: str, message: str) -> Response:
    # The body was not read: what is left of it must not be taken for a request.
    headers = {"Retry-After": str(_RETRY_AFTER_S), "Connection": "close"}
    return ApiError(503, message, code=code, headers=headers).response(error_shape(path))
