"""The command line: `headway chat | generate | serve | pull | models | inspect | …`.

A command is a module here with a function `run`; it is imported when its command is given, so
that `headway --help` needs neither NumPy nor PyTorch.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import sys
from collections.abc import Callable, Sequence

from headway.cli.options import SAMPLING_FLAGS
from headway.cli.parser import build_parser
from headway.cli.terminal import printable
from headway.errors import HeadwayError, InvalidConfig, InvalidRequest

__all__ = ["main"]

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command; exits with 0, 1 for an error it explains, 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show costs no answer
    args = build_parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    command = importlib.import_module(f"headway.cli.{args.command}")
    run: Callable[[argparse.Namespace], None] = command.run
    try:
        run(args)
    except HeadwayError as error:
        sys.exit(f"headway: error: {printable(_explained(error))}")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain when it flushes.
        sys.stdout = None


def _explained(error: HeadwayError) -> str:
    """The message, with the option as it is typed where the error names one."""
    if isinstance(error, InvalidConfig):
        option = "--" + error.field.replace("_", "-")
    elif isinstance(error, InvalidRequest) and error.field in SAMPLING_FLAGS:
        option = SAMPLING_FLAGS[error.field]
    else:
        return str(error)
    return option + str(error).removeprefix(error.field)
