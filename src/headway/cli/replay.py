"""`headway replay`: runs a recording again, or compares two of them."""

from __future__ import annotations

import argparse
import sys

from headway.errors import HeadwayError, InvalidConfig
from headway.record.compare import run_replay

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    try:
        status = run_replay(
            args.files,
            settings=args.settings,
            diff=args.diff,
            partial=args.partial,
            out=sys.stdout,
        )
    except InvalidConfig as error:
        raise HeadwayError(f"--set: {error}") from error
    except OSError as error:
        raise HeadwayError(f"{error.filename}: {error.strerror or error}") from error
    sys.exit(status)
