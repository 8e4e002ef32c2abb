"""An executor that computes nothing but moves a virtual clock, and cannot be fooled.

It keeps in each slot of its KV cache what a model would: something that depends on every
token before. A sampled token is a function of what the chunk reads through its block table,
so any mistake in scheduling (a token skipped or computed twice, a wrong block, a block reused
too early, a wrong prefix hit) shows as a wrong token. Every log-probability asked for is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.clock import VirtualClock
from headway.core.plan import Chunk, PromptRows, StepPlan, StepResult, TokenLogprobs

__all__ = ["LinearCost", "SimulatedExecutor", "expected_tokens"]

_START = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds of one step: a fixed part, one per token and one per block copied."""

    step_s: float = 0.005
    token_s: float = 0.0005
    block_copy_s: float = 0.0002

    def __call__(self, plan: StepPlan) -> float:
        num_copies = len(plan.copies_out) + len(plan.copies_in)
        return self.step_s + self.token_s * plan.num_tokens + self.block_copy_s * num_copies


class SimulatedExecutor:
    """Implements `Executor`. The clock moves when a result is collected.

    Args:
        clock: moved by `cost` for every step; None leaves time alone.
        num_blocks, block_size: the KV cache that the plans' block tables index.
        vocab_size: sampled tokens are below this.
        cost: seconds that a plan takes.
        verify: read every slot of a context, not its last alone, and fail where one holds
            another's KV, or the sample another output; costs a pass over the context per token.
    """

    def __init__(
        self,
        *,
        clock: VirtualClock | None,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        cost: LinearCost | None = None,
        verify: bool = False,
    ) -> None:
        self._clock = clock
        self._cost = cost or LinearCost()
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._slots: list[tuple[int, int]] = [(-1, -1)] * (num_blocks * block_size)
        """Per slot: token, and state after it."""
        self._swapped: dict[int, list[tuple[int, int]]] = {}
        """Swap slot → what its block held; gone once it was copied back."""
        self._sampled: dict[str, int] = {}
        self._verify = verify

    def block_copy_s(self) -> float:
        return self._cost.block_copy_s

    def submit(self, plan: StepPlan) -> tuple[StepResult, float]:
        for block, slot in plan.copies_out:
            self._swapped[slot] = self._slots[self._range(block)]
        for block in plan.zero_blocks:
            self._slots[self._range(block)] = [(-1, -1)] * self._block_size
        for slot, block in plan.copies_in:
            self._slots[self._range(block)] = self._swapped.pop(slot)
        # As in a model that goes layer by layer: all of the batch is written, then read.
        for chunk in plan.chunks:
            self._write(chunk)
        sampled = [self._samples(chunk) for chunk in plan.chunks]
        token_ids = tuple(tokens[-1] if tokens else None for tokens in sampled)
        accepted = {i: tokens[:-1] for i, tokens in enumerate(sampled) if len(tokens) > 1}
        self._sampled = {
            chunk.request_id: tokens[-1]
            for chunk, tokens in zip(plan.chunks, sampled, strict=True)
            if tokens
        }
        logprobs = {
            index: _certain(token)
            for index, (chunk, token) in enumerate(zip(plan.chunks, token_ids, strict=True))
            if chunk.sample and token is not None and chunk.sample.params.logprobs is not None
        }
        prompt_logprobs = {
            index: self._prompt_logprobs(chunk, chunk.prompt_rows)
            for index, chunk in enumerate(plan.chunks)
            if chunk.prompt_rows is not None
        }
        result = StepResult(
            plan.step,
            token_ids,
            accepted=accepted,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        return result, self._cost(plan)

    def collect(self, handle: tuple[StepResult, float]) -> StepResult:
        result, seconds = handle
        if self._clock is not None:
            self._clock.advance(seconds)
        return result

    def tokens_in(self, block: int) -> list[int]:
        """What the block's slots were computed of."""
        return [token for token, _ in self._slots[self._range(block)]]

    def spoil(self, plan: StepPlan) -> None:
        """The plan fails: whatever it would have written holds anything from here on."""
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.end):
                self._slots[self._slot(chunk, position)] = (-1, -1)
        for _, block in plan.copies_in:
            self._slots[self._range(block)] = [(-1, -1)] * self._block_size
        for _, slot in plan.copies_out:
            self._swapped.pop(slot, None)

    def _range(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)

    def _slot(self, chunk: Chunk, position: int) -> int:
        block = chunk.block_table[position // self._block_size]
        return block * self._block_size + position % self._block_size

    def _write(self, chunk: Chunk) -> None:
        token_ids = chunk.token_ids
        if chunk.follows_in_flight:
            token_ids = (*token_ids, self._sampled[chunk.request_id])
        state = _START if chunk.start == 0 else self._slots[self._slot(chunk, chunk.start - 1)][1]
        for position, token in enumerate(token_ids, chunk.start):
            state = _next_state(state, token)
            self._slots[self._slot(chunk, position)] = (token, state)

    def _samples(self, chunk: Chunk) -> tuple[int, ...]:
        """The drafts that are equal to what is sampled in their place, and the sample after."""
        if chunk.sample is None:
            return ()
        if self._verify:
            self._check_context(chunk)
        tokens = list[int]()
        for position in range(chunk.end - chunk.num_drafts, chunk.end + 1):
            _, state = self._slots[self._slot(chunk, position - 1)]
            tokens.append(_token(state, self._vocab_size, chunk.sample.suppressed))
            if position < chunk.end and tokens[-1] != chunk.token_ids[position - chunk.end]:
                break
        return tuple(tokens)

    def _prompt_logprobs(self, chunk: Chunk, asked: PromptRows) -> tuple[TokenLogprobs, ...]:
        end = asked.first + len(asked.token_ids)
        assert chunk.start < asked.first < end <= chunk.end + 1, "a row outside of the chunk"
        for position, token in enumerate(asked.token_ids[: chunk.end - asked.first], asked.first):
            computed, _ = self._slots[self._slot(chunk, position)]
            assert token == computed, f"{chunk.request_id}: position {position} is {computed}"
        return tuple(map(_certain, asked.token_ids))

    def _check_context(self, chunk: Chunk) -> None:
        state, tokens = _START, list[int]()
        for position in range(chunk.end):
            token, stored = self._slots[self._slot(chunk, position)]
            state = _next_state(state, token)
            assert stored == state, f"{chunk.request_id}: position {position} holds another's KV"
            tokens.append(token)
        if chunk.sample is not None and (output := chunk.sample.output_ids):
            known = tokens[: chunk.end - chunk.follows_in_flight]
            assert known[-len(output) :] == list(output), f"{chunk.request_id}: another output"


def expected_tokens(
    prompt: list[int],
    num_tokens: int,
    vocab_size: int,
    stop: frozenset[int] = frozenset(),
    min_tokens: int = 0,
) -> list[int]:
    """What the simulated executor answers to a prompt when nothing goes wrong."""
    state, output = _START, list[int]()
    for token in prompt:
        state = _next_state(state, token)
    while len(output) < num_tokens:
        suppressed = tuple(stop) if len(output) < min_tokens else ()
        output.append(_token(state, vocab_size, suppressed))
        if output[-1] in stop:
            break
        state = _next_state(state, output[-1])
    return output


def _certain(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, logprob=0.0, rank=1, top=())


def _next_state(state: int, token: int) -> int:
    return hash((state, token))


def _token(state: int, vocab_size: int, suppressed: tuple[int, ...]) -> int:
    token = state % vocab_size
    while token in suppressed:
        token = (token + 1) % vocab_size
    return token
