"""Plans for executors under test: any chunking, placement and batch of a few sequences."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import takewhile

from headway.core.params import SamplingParams
from headway.core.plan import Chunk, Sample, StepPlan

__all__ = [
    "BLOCK_SIZE",
    "GREEDY",
    "GREEDY_SAMPLE",
    "NUM_BLOCKS",
    "chunk_of",
    "random_plans",
    "whole",
]

BLOCK_SIZE = 4
NUM_BLOCKS = 96
GREEDY = SamplingParams(temperature=0.0)
GREEDY_SAMPLE = Sample(params=GREEDY, seed=0, index=0)


def chunk_of(
    request_id: str,
    tokens: Sequence[int],
    table: Sequence[int],
    *,
    start: int = 0,
    sample: bool = True,
    follows: bool = False,
) -> Chunk:
    """A chunk of `tokens`, which begin at `start`, sampled greedily."""
    return Chunk(
        request_id=request_id,
        start=start,
        token_ids=tuple(tokens),
        block_table=tuple(table),
        sample=GREEDY_SAMPLE if sample else None,
        follows_in_flight=follows,
    )


def whole(tokens: Sequence[int], table: Sequence[int] = tuple(range(NUM_BLOCKS))) -> StepPlan:
    """One sequence in one chunk, alone."""
    return StepPlan(step=0, chunks=(chunk_of("whole", tokens, table),))


def random_plans(
    rng: random.Random, sequences: Sequence[Sequence[int]], *, block_size: int = BLOCK_SIZE
) -> Iterator[StepPlan]:
    """Plans that compute every sequence, in chunks and batches of random size, in any order.

    Blocks lie anywhere in the pool. A sequence reads the full blocks that it has in common with
    an earlier one as soon as that one computes them, be it in the same plan. Every chunk samples.
    """
    tables, shared = _tables(rng, sequences, block_size)
    computed = list(shared)
    filled: set[int] = set()
    step = 0
    while any(done < len(tokens) for done, tokens in zip(computed, sequences, strict=True)):
        chunks = []
        for i, (tokens, table) in enumerate(zip(sequences, tables, strict=True)):
            start = computed[i]
            ready = filled.issuperset(table[: shared[i] // block_size])
            if start == len(tokens) or not ready or rng.random() < 0.3:
                continue
            computed[i] = end = min(len(tokens), start + rng.choice((1, 1, 2, 3, 7, 40)))
            chunks.append(chunk_of(str(i), tokens[start:end], table, start=start))
            filled.update(table[: end // block_size])
        if chunks:
            rng.shuffle(chunks)
            yield StepPlan(step=step, chunks=tuple(chunks))
            step += 1


def _tables(
    rng: random.Random, sequences: Sequence[Sequence[int]], block_size: int
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Block tables, and how many tokens of each sequence lie in blocks of an earlier one."""
    free = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    block_of: dict[tuple[int, ...], int] = {}
    tables, shared = [], []
    for tokens in sequences:
        prefixes = [tuple(tokens[: i + block_size]) for i in range(0, len(tokens), block_size)]
        hits = list(takewhile(block_of.__contains__, prefixes[: (len(tokens) - 1) // block_size]))
        table = [block_of[prefix] for prefix in hits] + [free.pop() for _ in prefixes[len(hits) :]]
        block_of.update(
            (prefix, block)
            for prefix, block in zip(prefixes, table, strict=True)
            if len(prefix) % block_size == 0 and prefix not in block_of
        )
        tables.append(tuple(table))
        shared.append(len(hits) * block_size)
    return tables, shared
