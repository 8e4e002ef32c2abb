"""`headway serve`: OpenAI's API over HTTP, until it is told to stop."""

from __future__ import annotations

import argparse
import os
import sys
import time

from headway.cli.options import engine_options
from headway.cli.terminal import Terminal
from headway.config import EngineArgs
from headway.models.sources import model_name
from headway.server.generation import ServedModel
from headway.server.run import bind, serve

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    engine_args = EngineArgs.of(engine_options(args))
    sock = bind(args.host, args.port)  # before the model is loaded: a busy port is told at once

    from headway.llm import build_engine  # noqa: PLC0415  imports PyTorch

    say = Terminal().say
    started = time.monotonic()
    engine = build_engine(engine_args, progress=say)
    say(engine.banner())
    say(f"Started in {time.monotonic() - started:.1f} s")
    model = ServedModel(
        names=(args.served_model_name or model_name(engine.model.path),),
        created=int(time.time()),
        tokenizer=engine.tokenizer,
        chat_template=engine.chat_template,
        sampling_defaults=engine.sampling_defaults,
        max_model_len=engine.config.max_model_len,
        exactness=engine.exactness,
    )
    serve(engine.asynchronous(), model, sock, access_log=args.access_log)
    engine.core.close()
    # All is answered and stopped; what is left, taking PyTorch down, can take seconds.
    sys.stdout.flush()
    os._exit(0)
