"""Who may use the API: keys for programs, origins for browsers. docs/security.md has the rest."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.server.errors import ApiError, error_shape

__all__ = ["ApiKeys", "allow_origins", "require_keys"]

_OPEN = frozenset({"/health", "/ready"})
"""What those ask that watch over the server, who have no key."""


class ApiKeys:
    """Keys that are good. They are kept as digests, and compared in a time that depends on how
    many there are alone."""

    def __init__(self, keys: Collection[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def accept(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers brings one, in whichever place."""
        found = False
        for name, value in headers:
            if name == b"x-api-key":
                presented = value.strip()
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                presented = value[7:].strip()
            else:
                continue
            digest = _digest(presented)
            for known in self._digests:
                found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class _Guard:
    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if path not in self._open_paths and not self._keys.accept(scope["headers"]):
                # The body was not read: what is left of it must not be taken for a request.
                headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
                error = ApiError(
                    401,
                    "No valid API key was presented, as `Authorization: Bearer KEY` or as "
                    "`x-api-key: KEY`.",
                    code="invalid_api_key",
                    headers=headers,
                )
                await error.response(error_shape(path))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def require_keys(app: ASGIApp, keys: Collection[str], *, metrics_no_auth: bool = False) -> ASGIApp:
    """Answers 401 without one of the keys, on every path but `/health` and `/ready`; and on
    `/metrics`, if so asked. No keys: everybody may."""
    if not keys:
        return app
    return _Guard(app, ApiKeys(keys), _OPEN | ({"/metrics"} if metrics_no_auth else set()))


def allow_origins(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """Tells browsers that pages of these origins may use the API; `*`: of any. It goes around
    `require_keys`, since a browser asks first, without a key."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=tuple(origins),
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("X-Request-Id", "Retry-After"),
    )
