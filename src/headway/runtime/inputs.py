"""What every executor does with a plan before it computes, and with what came of it after."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headway.core.plan import Chunk, PromptRows, Sample, StepPlan, StepResult, TokenLogprobs
from headway.models.spec import DecoderSpec

__all__ = [
    "SampleRow",
    "TokensByRequest",
    "check_plan",
    "fill_in",
    "sample_rows",
    "sampled_tokens",
    "step_result",
]

TokensByRequest = Mapping[str, int | None]
"""What the last plan sampled; None where a request was to be sampled and failed."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row of logits is sampled with."""

    sample: Sample
    position: int
    """Of the token that is sampled: it keys the draw."""
    output_ids: tuple[int, ...]
    """The whole output so far, the token that was in flight included; empty where neither a
    penalty nor `bad_words` need it."""


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


def sample_rows(plan: StepPlan, known: Sequence[tuple[int, ...]]) -> list[SampleRow]:
    """One per chunk with a sample, in order; `known` are the tokens that `fill_in` gave."""
    return [
        SampleRow(chunk.sample, chunk.end, _output_ids(chunk, chunk.sample, tokens))
        for chunk, tokens in zip(plan.chunks, known, strict=True)
        if chunk.sample is not None
    ]


def _output_ids(chunk: Chunk, sample: Sample, tokens: tuple[int, ...]) -> tuple[int, ...]:
    wanted = sample.params.penalises_output or sample.bad_words
    if wanted and chunk.follows_in_flight:
        return (*sample.output_ids, tokens[-1])
    return sample.output_ids


def step_result(
    plan: StepPlan,
    token_ids: Sequence[int | None],
    errors: Mapping[int, str],
    logprobs: Mapping[int, TokenLogprobs],
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]],
) -> StepResult:
    """All by chunk index; a chunk with an error keeps nothing but that.

    Prompt rows without log-probabilities (NaN logits) are an error of their chunk.
    """
    failed = dict(errors)
    for index, rows in prompt_logprobs.items():
        if any(math.isnan(row.logprob) for row in rows):
            failed.setdefault(index, "no prompt_logprobs: the logits hold NaN or infinity")
    return StepResult(
        step=plan.step,
        token_ids=tuple(None if i in failed else token for i, token in enumerate(token_ids)),
        errors=failed,
        logprobs={i: entry for i, entry in logprobs.items() if i not in failed},
        prompt_logprobs={i: rows for i, rows in prompt_logprobs.items() if i not in failed},
    )


def sampled_tokens(plan: StepPlan, result: StepResult) -> TokensByRequest:
    """What a plan sampled, for the plan that follows it."""
    return {
        chunk.request_id: token
        for chunk, token in zip(plan.chunks, result.token_ids, strict=True)
        if chunk.sample is not None
    }


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
