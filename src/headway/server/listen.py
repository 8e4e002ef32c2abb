"""The address that the server takes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from headway.errors import InvalidConfig
from headway.server.settings import ServerSettings

__all__ = ["bind", "listening", "url_of"]


@contextlib.contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """The socket of the settings, before a model is loaded: connections wait until the server
    takes them. A Unix socket's path is gone afterwards.

    Raises InvalidConfig that names the option and what to change.
    """
    if settings.ssl_certfile is not None and settings.ssl_keyfile is not None:
        _check_certificate(settings.ssl_certfile, settings.ssl_keyfile)
    uds = settings.uds
    with bind(settings.host, settings.port) if uds is None else _bind_unix(uds) as sock:
        try:
            sock.listen()
        except OSError as error:
            # Two servers can hold the address until one of them listens.
            raise _cannot_listen(settings.host, settings.port, error) from None
        try:
            yield sock
        finally:
            if uds is not None:
                Path(uds).unlink(missing_ok=True)


def url_of(sock: socket.socket, settings: ServerSettings) -> str:
    """Where a client finds the API."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    scheme = "http" if settings.ssl_certfile is None else "https"
    host, port = sock.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}:{port}{settings.root_path}/v1"


def bind(host: str, port: int) -> socket.socket:
    """Takes the address. Port 0 takes any free one. Raises `InvalidConfig`."""
    if not 0 <= port <= 65_535:
        raise InvalidConfig("port", f"must be between 0 and 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InvalidConfig("host", f"cannot resolve {host!r}: {error}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        # Lets a restarted server take the port while old connections linger in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from None
    return sock


def _bind_unix(path: str) -> socket.socket:
    """A path that a server left behind is taken over, and nothing else that lies there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise InvalidConfig("uds", f"{path} is there, and is no socket")
            if sock.connect_ex(path) == 0:
                raise InvalidConfig("uds", f"a server listens on {path}")
            sock.close()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            os.unlink(path)
        sock.bind(path)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise InvalidConfig("uds", f"cannot listen on {path}: {error}") from None
        raise
    return sock


def _check_certificate(certfile: str, keyfile: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        raise InvalidConfig("ssl_certfile", f"{certfile} with {keyfile}: {error}") from None


def _cannot_listen(host: str, port: int, error: OSError) -> InvalidConfig:
    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
        return InvalidConfig("host", f"cannot listen on {host}:{port}: {error.strerror}")
    return InvalidConfig(
        "port",
        f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port, "
        "or --port 0 for any free one",
    )
