"""`headway serve`: one model over HTTP, until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from types import FrameType

from headway.cli.options import engine_options, server_settings
from headway.cli.terminal import Terminal
from headway.config import EngineArgs
from headway.errors import InvalidConfig
from headway.server.listen import listening
from headway.server.process.launch import EngineProcess
from headway.server.watch.logs import configure_logs

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    started_s = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    engine_args = EngineArgs.of(engine_options(args))
    settings = server_settings(args)
    if settings.restart_engine and engine_args.record is not None:
        raise InvalidConfig("restart_engine", "a second engine would write over --record's file")
    configure_logs(settings.log_format, sys.stderr)
    # What is for a person is for a collector too, which wants it in its own form.
    plain = settings.log_format == "text"
    say = Terminal().say if plain else logging.getLogger("headway.serve").info
    with listening(settings) as sock:  # a busy port is told before a model is loaded
        process = EngineProcess(log_format=settings.log_format)

        # The engine's process imports PyTorch while this one imports the server.
        from headway.server.process.front import serve_engine  # noqa: PLC0415

        serve_engine(process, sock, engine_args, settings, say=say, started_s=started_s)
    # All is answered and stopped. A thread that still fetches a model is not waited for.
    sys.stdout.flush()
    os._exit(0)


def _end(_number: int, _frame: FrameType | None) -> None:
    """Until the server heeds signals: nothing was accepted, so there is nothing to finish."""
    os._exit(0)
