"""What every executor does with a plan before it computes: fills it in and checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.core.plan import Chunk, StepPlan
from headway.models.spec import DecoderSpec

__all__ = ["TokensByRequest", "check_plan", "fill_in", "sampled_tokens"]

TokensByRequest = Mapping[str, int | None]
"""What the last plan sampled; None where a request was to be sampled and failed."""


def fill_in(
    plan: StepPlan, in_flight: TokensByRequest
) -> tuple[list[tuple[int, ...]], dict[int, str]]:
    """The tokens of every chunk, those in flight filled in, and errors by chunk index.

    A chunk that follows a failed sample gets token 0, so that the rest of the step stands,
    and an error. Raises ValueError where the plan before sampled nothing for the request.
    """
    tokens: list[tuple[int, ...]] = []
    errors: dict[int, str] = {}
    for index, chunk in enumerate(plan.chunks):
        if not chunk.follows_in_flight:
            tokens.append(chunk.token_ids)
            continue
        if chunk.request_id not in in_flight:
            raise ValueError(
                f"step {plan.step}: request {chunk.request_id!r} follows a token in flight, "
                "but the plan before samples none for it"
            )
        token = in_flight[chunk.request_id]
        if token is None:
            errors[index] = "the token that it follows could not be sampled"
        tokens.append((*chunk.token_ids, token or 0))
    return tokens, errors


def sampled_tokens(plan: StepPlan, token_ids: Sequence[int | None]) -> TokensByRequest:
    """What a plan sampled, for the plan that follows it."""
    return {
        chunk.request_id: token
        for chunk, token in zip(plan.chunks, token_ids, strict=True)
        if chunk.sample is not None
    }


def check_plan(plan: StepPlan, spec: DecoderSpec, *, num_blocks: int, block_size: int) -> None:
    """Raises ValueError for a plan that reaches outside the model or the KV cache.

    Index arithmetic would otherwise read another head's or another request's memory.
    """
    if plan.zero_blocks:
        _check_range("zero_blocks", plan.zero_blocks, num_blocks)
    for chunk in plan.chunks:
        try:
            _check_chunk(chunk, spec, num_blocks, block_size)
        except ValueError as error:
            raise ValueError(f"step {plan.step}, request {chunk.request_id!r}: {error}") from None


def _check_chunk(chunk: Chunk, spec: DecoderSpec, num_blocks: int, block_size: int) -> None:
    if not chunk.num_tokens:
        raise ValueError("the chunk has no tokens")
    if chunk.start < 0 or chunk.end > spec.max_position:
        raise ValueError(
            f"positions {chunk.start} to {chunk.end} are outside of the model's "
            f"{spec.max_position} positions"
        )
    if chunk.end > len(chunk.block_table) * block_size:
        raise ValueError(
            f"{len(chunk.block_table)} blocks of {block_size} tokens do not hold {chunk.end} tokens"
        )
    _check_range("block_table", chunk.block_table, num_blocks)
    if chunk.token_ids:
        _check_range("token_ids", chunk.token_ids, spec.vocab_size)
    if chunk.sample is not None and chunk.sample.suppressed:
        _check_range("suppressed", chunk.sample.suppressed, spec.vocab_size)


def _check_range(name: str, values: tuple[int, ...], stop: int) -> None:
    if min(values) < 0 or max(values) >= stop:
        bad = next(value for value in values if not 0 <= value < stop)
        raise ValueError(f"{name} holds {bad}, which is outside of [0, {stop})")
