"""`headway bench latency`: one sequence alone, its prefill and its decode."""

from __future__ import annotations

import argparse

import numpy as np

from headway.bench.offline import Batch
from headway.cli.bench.engine import opened

__all__ = ["run"]

_PERCENTILES = (10, 25, 50, 75, 90, 99)


def run(args: argparse.Namespace) -> None:
    with opened(args) as bench:

        def measure() -> Batch:
            return bench.run(1, input_len=args.input_len, output_len=args.output_len)

        for _ in range(args.num_iters_warmup):
            measure()
        batches = [measure() for _ in range(args.num_iters)]
        latencies = [batch.total_s for batch in batches]
        bench.report(
            batches,
            measure,
            avg_latency=float(np.mean(latencies)),
            latencies=latencies,
            percentiles={str(each): float(np.percentile(latencies, each)) for each in _PERCENTILES},
            median_prefill_s=float(np.median([batch.prefill_s for batch in batches])),
        )
