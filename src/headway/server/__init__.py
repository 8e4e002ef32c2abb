"""The HTTP server: several APIs over one engine, which runs in a process of its own.

`app` has the routes, `generation` the way of a request, `run` the server's life, `process` the
engine.
"""

from __future__ import annotations

__all__: list[str] = []
