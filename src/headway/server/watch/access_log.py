"""A line in the log for each HTTP request, once it is answered."""

from __future__ import annotations

import logging

from headway.server.watch.exchange import Exchange

__all__ = ["log_access"]

_logger = logging.getLogger(__name__)


def log_access(exchange: Exchange) -> None:
    """What was asked and answered is not in it."""
    fields: dict[str, object] = {
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "duration_s": round(exchange.duration_s, 4),
        "request_id": exchange.request_id,
        "code": exchange.code,
        "answer_id": exchange.answer_id,
    }
    if exchange.num_prompt_tokens is not None:
        fields |= {
            "prompt_tokens": exchange.num_prompt_tokens,
            "cached_tokens": exchange.num_cached_tokens,
            "output_tokens": exchange.num_output_tokens,
        }
    _logger.info("request", extra={"fields": fields})
