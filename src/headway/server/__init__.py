"""The HTTP server: OpenAI's and vLLM's API over one engine.

`app` has the routes, `endpoint` the way of a request, `run` the process.
"""

from __future__ import annotations

__all__: list[str] = []
