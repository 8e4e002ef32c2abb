"""`headway soak`: the scheduler under random work, all that must hold checked after every call."""

from __future__ import annotations

import argparse
import sys

from headway.sim.soak import run_soak

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    sys.exit(run_soak(args.steps, args.seed, max_seconds=args.max_seconds))
