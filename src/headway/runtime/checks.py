"""What a plan may ask of an executor that computes."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.plan import Chunk, PromptRows, Sample, StepPlan
from headway.models.spec import DecoderSpec

__all__ = ["check_plan"]


def check_plan(
    plan: StepPlan, spec: DecoderSpec, *, num_blocks: int, block_size: int, num_swap_blocks: int
) -> None:
    """Raises ValueError for a plan that reaches outside the model, the KV cache or the swap
    space, or copies two blocks to one place.

    Index arithmetic would otherwise read another head's or another request's memory. The
    tokens of `Sample.prompt_ids` and `output_ids` are not looked at, for they may be many:
    the door has seen the ones, and an executor has sampled the others.
    """
    _check_range("zero_blocks", plan.zero_blocks, num_blocks)
    _check_copies("copies_out", plan.copies_out, num_blocks, num_swap_blocks)
    _check_copies("copies_in", plan.copies_in, num_swap_blocks, num_blocks)
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
    _check_range("token_ids", chunk.token_ids, spec.vocab_size)
    if chunk.sample is not None:
        _check_sample(chunk.sample, spec.vocab_size)
    if chunk.num_drafts:
        _check_drafts(chunk)
    if chunk.prompt_rows is not None:
        _check_prompt_rows(chunk, chunk.prompt_rows, spec.vocab_size)


def _check_copies(
    name: str, copies: tuple[tuple[int, int], ...], num_sources: int, num_targets: int
) -> None:
    """Two victims may share a block, so that it is read twice; nothing is written twice."""
    targets = [target for _, target in copies]
    _check_range(f"{name} (from)", [source for source, _ in copies], num_sources)
    _check_range(f"{name} (to)", targets, num_targets)
    if len(set(targets)) < len(targets):
        twice = next(target for i, target in enumerate(targets) if target in targets[:i])
        raise ValueError(f"{name} writes {twice} twice")


def _check_sample(sample: Sample, vocab_size: int) -> None:
    _check_range("suppressed", sample.suppressed, vocab_size)
    _check_range("logit_bias", sample.params.logit_bias or (), vocab_size)
    allowed = tuple(sample.params.allowed_token_ids or ())[-1:]  # sorted, and none is negative
    _check_range("allowed_token_ids", allowed, vocab_size)
    for word in sample.bad_words:
        _check_range("bad_words", word, vocab_size)


def _check_drafts(chunk: Chunk) -> None:
    """Drafts follow a known token, and are all sampled in the same way."""
    if not 0 < chunk.num_drafts < len(chunk.token_ids):
        raise ValueError(
            f"num_drafts is {chunk.num_drafts}, but of {len(chunk.token_ids)} tokens it must be "
            "fewer, and not less than 0"
        )
    if chunk.sample is None:
        raise ValueError("there are drafts, but no sample to hold them against")
    if chunk.follows_in_flight:
        raise ValueError("drafts cannot come before a token in flight")
    sample, params = chunk.sample, chunk.sample.params
    differs = {
        "logprobs": params.logprobs is not None,
        "min_tokens": params.min_tokens or sample.suppressed,
        "bad_words": sample.bad_words,
        "a penalty": params.penalises_output,
        "a constraint": sample.constraint is not None,
    }
    for name, given in differs.items():
        if given:
            raise ValueError(f"drafts cannot be sampled with {name}")


def _check_prompt_rows(chunk: Chunk, rows: PromptRows, vocab_size: int) -> None:
    last = rows.first + len(rows.token_ids) - 1
    if not chunk.start < rows.first <= last <= chunk.end:
        raise ValueError(
            f"the rows that foretell positions {rows.first} to {last} are not all in the chunk, "
            f"which computes positions {chunk.start} to {chunk.end - 1}"
        )
    _check_range("prompt_rows", rows.token_ids, vocab_size)
    if not 0 <= rows.num_top <= vocab_size:
        raise ValueError(f"prompt_rows asks for {rows.num_top} of {vocab_size} tokens")


def _check_range(name: str, values: Collection[int], stop: int) -> None:
    if values and (min(values) < 0 or max(values) >= stop):
        bad = next(value for value in values if not 0 <= value < stop)
        raise ValueError(f"{name} holds {bad}, which is outside of [0, {stop})")
