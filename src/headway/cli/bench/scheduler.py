"""`headway bench scheduler`: what scheduling costs on this machine."""

from __future__ import annotations

import argparse
import sys

from headway.bench.scheduler import run_bench

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    run_bench(rounds=args.rounds, output_json=args.output_json, out=sys.stdout)
