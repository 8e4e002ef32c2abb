"""Latencies under docs/guide/workloads/mixed.json, by token budget and long-prefill threshold.

The scheduler runs with the simulated executor, whose steps cost what was measured of the C++
kernels; docs/design/figures.md shows some of it. Not a test: `python tests/sim/mixed_load.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import msgspec

from headway.clock import VirtualClock
from headway.core.params import SamplingParams
from headway.core.plan import Chunk, StepPlan
from headway.core.request import Request
from headway.record.setup import SchedulerConfig, build_scheduler
from headway.sim.executor import SimulatedExecutor
from headway.workload import read_workload

MIXED = Path(__file__).parents[2] / "docs/guide/workloads/mixed.json"
VOCAB = 49_152
SEEDS = range(1, 6)


def seconds(plan: StepPlan) -> float:
    """SmolLM2-135M in int8 with an int8 KV cache on two cores with AVX-512: fitted to 207 steps of
    up to 64 decodes at contexts up to 1,200 and chunks up to 512 at up to 1,500, half of which it
    meets within 2.6 %; and 3 ms for all that is not the model."""
    return 0.009 + sum(map(_chunk_s, plan.chunks))


def _chunk_s(chunk: Chunk) -> float:
    if chunk.num_tokens == 1:
        return 0.51e-3 + 1.1e-6 * chunk.start
    return 0.387e-3 * chunk.num_tokens + 0.193e-6 * chunk.num_tokens * (
        chunk.start + chunk.num_tokens / 2
    )


def run(config: SchedulerConfig, seed: int) -> tuple[dict[str, list[float]], list[float]]:
    """Times to the first token by class, and between tokens of short requests; seconds."""
    workload = msgspec.structs.replace(read_workload(MIXED), seed=seed)
    coming = sorted(workload.items(), key=lambda item: item.arrival_s, reverse=True)
    clock, scheduler = VirtualClock(), build_scheduler(config, vocab_size=VOCAB)
    executor = SimulatedExecutor(
        clock=clock,
        num_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        vocab_size=VOCAB,
        cost=seconds,  # type: ignore[arg-type]
    )
    last: dict[str, tuple[str, float]] = {}
    first_after, between = defaultdict[str, list[float]](list), list[float]()
    while coming or scheduler.has_work:
        if not scheduler.has_work:
            clock.advance(max(0.0, coming[-1].arrival_s - clock.now()))
        while coming and coming[-1].arrival_s <= clock.now():
            item = coming.pop()
            params = SamplingParams(max_tokens=item.output_len, ignore_eos=True)
            name = f"{item.class_name}-{len(coming)}"
            request = Request(name, list(item.token_ids), params, arrival_s=item.arrival_s)
            scheduler.add([request], clock.now())
            last[name] = "", item.arrival_s
        plan = scheduler.schedule(clock.now())
        result = executor.collect(executor.submit(plan))
        for chunk, token in zip(plan.chunks, result.token_ids, strict=True):
            if token is None:
                continue
            kind = chunk.request_id.partition("-")[0]
            before, at_s = last[chunk.request_id]
            gaps = first_after[kind] if not before else between if kind == "short" else []
            gaps.append(clock.now() - at_s)
            last[chunk.request_id] = kind, clock.now()
        scheduler.apply(result, clock.now())
    return first_after, between


def share(values: Iterable[float], quantile: float) -> float:
    """Milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def main() -> None:
    print("budget  threshold   short TTFT p50   p99   ITL p99   max   long TTFT p50   max")
    for budget, threshold in product((128, 256, 320, 384, 512), (0, 64, 96, 128, 192)):
        config = SchedulerConfig(
            num_kv_blocks=8192,
            block_size=16,
            max_model_len=8192,
            max_num_batched_tokens=budget,
            max_num_seqs=128,
            long_prefill_token_threshold=threshold,
        )
        short, long, between = list[float](), list[float](), list[float]()
        for seed in SEEDS:
            first_after, gaps = run(config, seed)
            short += first_after["short"]
            long += first_after["long"]
            between += gaps
        print(
            f"{budget:6} {threshold:10} {share(short, 0.5):16.0f} {share(short, 0.99):5.0f} "
            f"{share(between, 0.99):9.0f} {share(between, 1):5.0f} {share(long, 0.5):15.0f} "
            f"{share(long, 1):5.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
