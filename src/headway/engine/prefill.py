"""What prompt tokens cost on this machine, measured before anything is served."""

from __future__ import annotations

import math

from headway.clock import Clock
from headway.core.plan import Chunk, Executor, StepPlan

__all__ = ["prefill_rate"]

_PROMPT = 512
"""Tokens of a prompt in a measured step at most: a step of many is several prompts."""


def prefill_rate(
    executor: Executor,
    clock: Clock,
    *,
    block_size: int,
    num_blocks: int,
    max_model_len: int,
    max_tokens: int,
    within_s: float = 0.5,
) -> float:
    """Prompt tokens per second, of the fastest of some prefill steps; inf where they take no time.

    The steps take `within_s` together, each twice as large as the last while that leaves time for
    it, up to `max_tokens` or what the KV cache holds; one block goes before, uncounted, to warm up.
    The executor must not be in use yet: the steps leave anything in its blocks, and hold none.
    """
    length = min(_PROMPT, max_model_len)
    most = min(max_tokens, num_blocks // -(-length // block_size) * length)
    size = min(block_size, most)
    _seconds(executor, clock, _prefill(size, length, block_size))
    rate, left_s = 0.0, within_s
    while True:
        took_s = _seconds(executor, clock, _prefill(size, length, block_size))
        if took_s <= 0:
            return math.inf
        rate = max(rate, size / took_s)
        left_s -= took_s
        larger = min(2 * size, most)
        if larger / rate <= left_s:
            size = larger
        elif size / rate > left_s:
            return rate


def _seconds(executor: Executor, clock: Clock, plan: StepPlan) -> float:
    began_s = clock.now()
    executor.collect(executor.submit(plan))
    return clock.now() - began_s


def _prefill(num_tokens: int, length: int, block_size: int) -> StepPlan:
    """So many tokens, in prompts of at most `length`, each in blocks of its own."""
    chunks, block = list[Chunk](), 0
    for start in range(0, num_tokens, length):
        tokens = (0,) * min(length, num_tokens - start)
        table = tuple(range(block, block + -(-len(tokens) // block_size)))
        chunks.append(Chunk(f"prefill-{start}", 0, tokens, table))
        block += len(table)
    return StepPlan(0, tuple(chunks))
