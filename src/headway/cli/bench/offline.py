"""`headway bench offline`: throughput without a server."""

from __future__ import annotations

import argparse

from headway.bench.offline import Batch
from headway.cli.bench.engine import opened

__all__ = ["run"]

_WARM_UP_PROMPTS = 2
_WARM_UP_OUTPUT = 4


def run(args: argparse.Namespace) -> None:
    with opened(args) as bench:

        def measure() -> Batch:
            return bench.run(args.num_prompts, input_len=args.input_len, output_len=args.output_len)

        # The first steps pay for memory that was never touched.
        output_len = min(args.output_len, _WARM_UP_OUTPUT)
        bench.run(_WARM_UP_PROMPTS, input_len=args.input_len, output_len=output_len)
        batch = measure()
        bench.report([batch], measure, elapsed_s=batch.total_s)
