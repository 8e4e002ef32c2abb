"""How log lines look: text for a person, or JSON for a collector. They go to standard error.

A record may carry `fields`, a mapping, as its `extra`; text shows them as `name=value`, JSON as
members. Prompts, answers and keys are in none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TextIO

import msgspec

__all__ = ["JsonFormatter", "TextFormatter", "configure_logs"]


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    """UTC, to the millisecond."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO the message name=value`, one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, record.getMessage()]
        parts += [f"{name}={value}" for name, value in _fields(record).items() if value is not None]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in _fields(record).items() if value is not None},
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(content, enc_hook=str).decode()


def configure_logs(log_format: str, stream: TextIO) -> None:
    """Sets up the loggers of Headway and of what it stands on, for a server's process."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("headway").setLevel(logging.INFO)
