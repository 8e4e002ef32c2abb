"""Servers that are watched: their `/metrics` and `/health`, over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from headway.doctor.exposition import Exposition, read_exposition
from headway.errors import InvalidConfig, NotReachable, SourceError

__all__ = ["URL", "Page", "Server", "Source"]

URL = "URL"
"""What errors call an address that is wrong: it is given without an option's name."""
_MOST_BYTES = 32 * 2**20
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Page:
    """What a source told at one moment."""

    metrics: Exposition
    lost: str | None
    """Why its engine cannot be used, if the server says so."""


class Source(Protocol):
    """Something to watch."""

    @property
    def name(self) -> str: ...

    def read(self, now: Callable[[], float]) -> Page:
        """The moment of the samples is when the answer is there. Raises SourceError."""
        ...


class _NoRedirects(HTTPRedirectHandler):
    """A header with a key must not go on to another host."""

    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


class Server:
    """A server's metrics; for one thread at a time.

    Args:
        url: `http://host:port`, https, perhaps with a path before `/metrics`.
        headers: go with every request.
        insecure: take any certificate.

    Raises InvalidConfig for a URL that is none.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], insecure: bool = False) -> None:
        base = url.rstrip("/").removesuffix("/metrics")
        _check(url)
        self.name = base
        self._headers = dict(headers)
        self._opener = _opener(self.name, insecure)

    def read(self, now: Callable[[], float]) -> Page:
        text = self._metrics()
        try:
            metrics = read_exposition(text, now())
        except ValueError as error:
            raise SourceError(
                f"{self.name}/metrics is no valid Prometheus text: {error}"
            ) from error
        if metrics is None:
            raise SourceError(
                f"{self.name}/metrics has no metrics of Headway or vLLM; give the address of such "
                "a server, as http://host:8000"
            )
        return Page(metrics, self._lost())

    def _metrics(self) -> str:
        status, body = self._get("/metrics")
        if status == 200:
            return body.decode("utf-8", "replace")
        what = f"{self.name}/metrics answers {status}"
        if status in (401, 403):
            raise SourceError(
                f"{what}: it asks for a key; give --header 'Authorization=Bearer KEY'"
            )
        if status in (429, 500, 502, 503, 504):
            raise NotReachable(what)
        raise SourceError(
            f"{what}; give the server's own address, as http://host:8000, without /v1"
        )

    def _lost(self) -> str | None:
        """A server that has no /health says nothing by that."""
        status, _ = self._get("/health")
        return f"/health answers {status}" if status in (500, 503) else None

    def _get(self, path: str) -> tuple[int, bytes]:
        request = Request(self.name + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                body: bytes = answer.read(_MOST_BYTES + 1)
                if len(body) > _MOST_BYTES:
                    raise SourceError(f"{self.name}{path} does not end")
                return answer.status, body
        except HTTPError as error:
            with error:
                return error.code, b""
        except (OSError, HTTPException) as error:
            raise NotReachable(f"{self.name} does not answer: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return reason.strerror or str(reason) if isinstance(reason, OSError) else str(reason)


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise InvalidConfig(URL, f"must be like http://host:8000, not {url!r}")
    if parts.username is not None:
        raise InvalidConfig(URL, "holds a name or password; give it with --header instead")


def _opener(url: str, insecure: bool) -> OpenerDirector:
    """Straight to the server, as `bench serve` does."""
    handlers: list[BaseHandler] = [ProxyHandler({}), _NoRedirects()]
    if urlsplit(url).scheme == "https":
        context = ssl.create_default_context()
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        handlers.append(HTTPSHandler(context=context))
    return build_opener(*handlers)
