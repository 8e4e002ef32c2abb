"""`headway pull`: fetches a model, and prints where it is."""

from __future__ import annotations

import argparse

from headway.cli.options import cache_dir
from headway.cli.terminal import Terminal
from headway.models.sources import pull

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    path = pull(
        args.name,
        cache_dir=cache_dir(args),
        progress=Terminal().say,
        revision=args.revision,
        verify=True,
    )
    print(path)
