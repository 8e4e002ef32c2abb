"""Requests decoded with drafts, some right and some wrong, in any batch and any chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.plan import Chunk, Sample, StepPlan
from tiny import TINY
from tiny_plans import BLOCK_SIZE

__all__ = ["MAX_DRAFTS", "Drafted", "decode_with_drafts", "decoded_plainly"]

MAX_DRAFTS = 7


@dataclass
class Drafted:
    """A request: what is known and computed of it, and the output that it must come to."""

    name: str
    table: tuple[int, ...]
    sample: Sample
    num_prompt_tokens: int
    known: list[int]
    expected: list[int]
    """Prompt and output without drafts."""
    computed: int = 0

    @property
    def left(self) -> int:
        """Tokens of its output that are not known."""
        return len(self.expected) - len(self.known)

    def chunk(self, rng: random.Random, size: int, num_drafts: int) -> Chunk:
        """Up to `size` known tokens; if they are the last ones, drafts after them. A draft is
        right until one is not; what comes then may be anything."""
        end = min(len(self.known), self.computed + size)
        tokens = self.known[self.computed : end]
        if end < len(self.known):
            return Chunk(self.name, self.computed, tuple(tokens), self.table)
        num_drafts = max(0, min(num_drafts, self.left - 1))
        num_right = rng.randint(0, num_drafts)
        drafts = self.expected[end : end + num_drafts]
        for i in range(num_right, num_drafts):
            if i == num_right or rng.random() < 0.5:
                drafts[i] = rng.choice([t for t in range(TINY.vocab_size) if t != drafts[i]])
        return Chunk(
            request_id=self.name,
            start=self.computed,
            token_ids=(*tokens, *drafts),
            block_table=self.table,
            sample=self.sample,
            num_drafts=num_drafts,
        )


def decoded_plainly(
    executor: Any, name: str, prompt: Sequence[int], sample: Sample, num_tokens: int, first: int
) -> Drafted:
    """The request alone, whole and then token by token, on the blocks from `first` on; ready to
    be decoded again."""
    num_blocks = -(-(len(prompt) + num_tokens) // BLOCK_SIZE)
    table = tuple(range(first, first + num_blocks))
    known, start = list(prompt), 0
    for step in range(num_tokens):
        chunk = Chunk(name, start, tuple(known[start:]), table, sample)
        (token,) = executor.submit(StepPlan(step, (chunk,))).token_ids
        start = len(known)
        known.append(token)
    return Drafted(name, table, sample, len(prompt), list(prompt), known)


def decode_with_drafts(
    rng: random.Random, executor: Any, requests: Iterable[Drafted]
) -> tuple[int, int]:
    """Decodes all of them; fails where an output is not the expected one. Some are recomputed
    from where they had not got to yet. How many drafts were given, and accepted."""
    running, step = list(requests), 0
    given = accepted = 0
    while running:
        num_drafts = rng.choice((0, 1, 2, 4, MAX_DRAFTS))
        chunks, by_chunk = [], []
        for request in rng.sample(running, rng.randint(1, len(running))):
            if rng.random() < 0.05:
                request.computed = rng.randint(0, request.computed)
            own = num_drafts if rng.random() < 0.7 else rng.randint(0, MAX_DRAFTS)
            chunks.append(request.chunk(rng, rng.choice((1, 2, 5, 40)), own))
            by_chunk.append(request)
        result = executor.submit(StepPlan(step, tuple(chunks)))
        assert not result.errors
        for i, (chunk, request) in enumerate(zip(chunks, by_chunk, strict=True)):
            request.computed = chunk.end
            assert (result.token_ids[i] is not None) == (chunk.sample is not None)
            if chunk.sample is None:
                assert i not in result.accepted
                continue
            held = result.accepted.get(i, ())
            sampled = [*held, result.token_ids[i]]
            position = len(request.known)
            assert sampled == request.expected[position : position + len(sampled)]
            request.known += sampled
            request.computed -= chunk.num_drafts - len(held)
            given, accepted = given + chunk.num_drafts, accepted + len(held)
        running = [request for request in running if request.left]
        step += 1
    return given, accepted
