"""What every executor keeps to, tested whatever the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from headway.core.params import SamplingParams
from headway.core.plan import Chunk, PromptRows, Sample, StepPlan
from headway.runtime.draws import uniforms
from headway.runtime.inputs import SampleRow
from tiny import TINY
from tiny_executors import WEIGHTS, each_executor, pytorch, reference
from tiny_plans import GREEDY_SAMPLE, NUM_BLOCKS, chunk_of, whole


def poisoned(token: int) -> Any:
    """TINY's weights, with NaN for this token."""
    weights = WEIGHTS["llama"]
    embedding = weights.embedding.copy()
    embedding[token] = np.nan
    return replace(weights, embedding=embedding, head=weights.embedding)


def test_both_executors_draw_the_same_tokens() -> None:
    tokens = list(range(9))
    plans = [
        StepPlan(
            step=0,
            chunks=(
                chunk_of("r", tokens, (1, 2, 3))._replace(
                    sample=Sample(params=SamplingParams(), seed=seed, index=0),
                ),
            ),
        )
        for seed in range(100)
    ]
    drawn = [[e.submit(plan).token_ids for plan in plans] for e in (reference(), pytorch())]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 5


@each_executor
def test_a_draw_is_keyed_by_the_position_of_its_token(make: Callable[..., Any]) -> None:
    """The sample is the same throughout; with equal logits the token shows the number drawn."""
    head = np.zeros_like(WEIGHTS["llama"].head)
    executor = make(weights=replace(WEIGHTS["llama"], head=head))
    sample = Sample(params=SamplingParams(), seed=5, index=2)
    chunks = [
        chunk_of("r", [1, 2, 3, 4, 5, 6], (1, 2, 3)),
        chunk_of("r", [], (1, 2, 3), start=6, follows=True),
        chunk_of("r", [7, 8], (1, 2, 3), start=6, follows=True),
        chunk_of("r", [9], (1, 2, 3), start=11),
    ]
    drawn = [
        executor.submit(StepPlan(step, (chunk._replace(sample=sample),))).token_ids[0]
        for step, chunk in enumerate(chunks)
    ]
    numbers = uniforms([SampleRow(sample, position, ()) for position in (6, 7, 9, 12)])
    assert drawn == np.floor(numbers * TINY.vocab_size).astype(int).tolist()


@each_executor
def test_a_chunk_without_a_sample_has_no_token(make: Callable[..., Any]) -> None:
    executor = make()
    chunks = (chunk_of("a", [1, 2, 3], (0,), sample=False), chunk_of("b", [4], (1,)))
    result = executor.collect(executor.submit(StepPlan(step=7, chunks=chunks)))
    assert result.step == 7
    assert result.token_ids[0] is None
    assert result.token_ids[1] is not None
    assert executor.logits(StepPlan(step=8, chunks=chunks)).shape == (1, TINY.vocab_size)


@each_executor
def test_an_empty_plan_has_an_empty_result(make: Callable[..., Any]) -> None:
    result = make().submit(StepPlan(step=1, chunks=(), zero_blocks=(3,)))
    assert (result.token_ids, result.errors) == ((), {})


@each_executor
def test_a_token_in_flight_counts_as_if_it_had_been_waited_for(make: Callable[..., Any]) -> None:
    prompts = {"a": [3, 1, 4, 1, 5], "b": [9, 2, 6]}
    tables = {"a": (5, 2, 8), "b": (7, 0, 1)}
    waiting, following = make(), make()
    known = {name: list(tokens) for name, tokens in prompts.items()}
    for step in range(4):
        by_wait, by_reference = [], []
        for name in ("a", "b") if step % 2 else ("b", "a"):
            start = len(known[name]) - 1 if step else 0
            new = known[name][start:]
            by_wait.append(chunk_of(name, new, tables[name], start=start))
            by_reference.append(
                chunk_of(name, [], tables[name], start=start, follows=True) if step else by_wait[-1]
            )
        result = waiting.submit(StepPlan(step=step, chunks=tuple(by_wait)))
        assert following.submit(StepPlan(step=step, chunks=tuple(by_reference))) == result
        for chunk, token in zip(by_wait, result.token_ids, strict=True):
            known[chunk.request_id].append(token)


@each_executor
def test_known_tokens_may_come_before_the_one_in_flight(make: Callable[..., Any]) -> None:
    waiting, following = make(), make()
    first = StepPlan(step=0, chunks=(chunk_of("a", [1, 2], (0, 1)),))
    (token,) = waiting.submit(first).token_ids
    following.submit(first)
    expected = waiting.submit(
        StepPlan(step=1, chunks=(chunk_of("a", [2, token], (0, 1), start=1),))
    )
    chunk = chunk_of("a", [2], (0, 1), start=1, follows=True)
    assert following.submit(StepPlan(step=1, chunks=(chunk,))) == expected


@each_executor
def test_following_a_token_that_was_never_sampled_is_refused_by_name(
    make: Callable[..., Any],
) -> None:
    executor = make()
    executor.submit(StepPlan(step=0, chunks=(chunk_of("a", [1], (0,), sample=False),)))
    follower = StepPlan(step=1, chunks=(chunk_of("a", [], (0,), start=1, follows=True),))
    with pytest.raises(ValueError, match="'a' follows a token in flight"):
        executor.submit(follower)


@each_executor
def test_a_row_with_nan_fails_alone(make: Callable[..., Any]) -> None:
    executor = make(weights=poisoned(13))
    healthy = [chunk_of("a", [1, 2, 3], (0,)), chunk_of("c", [4], (2,))]
    sick = chunk_of("b", [5, 13], (1,))
    alone = executor.submit(StepPlan(step=0, chunks=tuple(healthy))).token_ids
    result = executor.submit(StepPlan(step=1, chunks=(healthy[0], sick, healthy[1])))
    assert result.token_ids == (alone[0], None, alone[1])
    assert list(result.errors) == [1]
    assert "NaN" in result.errors[1].message


@each_executor
def test_nan_in_blocks_of_another_request_is_never_read(make: Callable[..., Any]) -> None:
    """The first block of the pool is sick; rows of very different length decode together."""
    executor = make(weights=poisoned(13))
    tables = {"short": (5,), "long": tuple(range(6, 16))}
    prompts = {"short": [3], "long": list(range(11)) * 3}
    prefill = [chunk_of(name, tokens, tables[name]) for name, tokens in prompts.items()]
    decode = [
        chunk_of(name, [7], tables[name], start=len(tokens)) for name, tokens in prompts.items()
    ]
    executor.submit(StepPlan(step=0, chunks=tuple(prefill)))
    expected = executor.submit(StepPlan(step=1, chunks=tuple(decode)))
    executor.submit(StepPlan(step=2, chunks=(chunk_of("sick", [13] * 4, (0,)),)))
    sick = chunk_of("sick", [13], (0, 1), start=4)
    result = executor.submit(StepPlan(step=3, chunks=(*decode, sick)))
    assert result.token_ids == (*expected.token_ids, None)


@each_executor
def test_a_chunk_reads_the_block_that_a_later_chunk_of_its_plan_writes(
    make: Callable[..., Any],
) -> None:
    tokens = list(range(10, 19))
    writer = chunk_of("writer", tokens[:6], (3, 4))
    reader = chunk_of("reader", tokens[4:], (3, 7, 8), start=4)
    decoder = chunk_of("decoder", tokens[4:5], (3, 9), start=4)
    rows = make().logits(StepPlan(step=0, chunks=(decoder, reader, writer)))
    for row, length in zip(rows, (5, 9, 6), strict=True):
        np.testing.assert_allclose(row, make().logits(whole(tokens[:length]))[0], atol=1e-4)


@each_executor
def test_who_follows_a_failed_sample_fails_alone_too(make: Callable[..., Any]) -> None:
    executor = make(weights=poisoned(13))
    executor.submit(StepPlan(step=0, chunks=(chunk_of("a", [13], (0,)), chunk_of("b", [1], (1,)))))
    followers = tuple(
        chunk_of(name, [], (block,), start=1, follows=True) for name, block in (("a", 0), ("b", 1))
    )
    result = executor.submit(StepPlan(step=1, chunks=followers))
    assert list(result.errors) == [0]
    assert result.token_ids[0] is None
    assert result.token_ids[1] is not None


@each_executor
def test_zeroed_blocks_hold_no_nan_for_their_next_owner(make: Callable[..., Any]) -> None:
    executor = make(weights=poisoned(13))
    sick = StepPlan(step=0, chunks=(chunk_of("sick", [1, 2, 13, 13, 13, 13], (4, 6)),))
    next_owner = (chunk_of("next", [1, 2, 3, 4, 5], (6, 4)), chunk_of("one", [7], (9,)))
    expected = executor.submit(StepPlan(step=1, chunks=next_owner))
    executor.submit(sick)
    assert (
        executor.submit(StepPlan(step=2, chunks=next_owner[:1], zero_blocks=(6, 4))).token_ids
        == (expected.token_ids[:1])
    )
    executor.submit(sick)
    decode = (chunk_of("one", [7], (6,)),)
    result = executor.submit(StepPlan(step=3, chunks=decode, zero_blocks=(4, 6)))
    assert result.token_ids == expected.token_ids[1:]


@each_executor
def test_suppressed_tokens_are_not_sampled(make: Callable[..., Any]) -> None:
    executor = make()
    chunk = chunk_of("a", [1, 2, 3], (0,))
    (first,) = executor.submit(StepPlan(step=0, chunks=(chunk,))).token_ids
    second = int(np.argsort(executor.logits(StepPlan(step=1, chunks=(chunk,)))[0])[-2])
    without = chunk._replace(sample=replace(GREEDY_SAMPLE, suppressed=(first,)))
    assert executor.submit(StepPlan(step=2, chunks=(without,))).token_ids == (second,)
    none_left = chunk._replace(
        sample=replace(GREEDY_SAMPLE, suppressed=tuple(range(TINY.vocab_size)))
    )
    result = executor.submit(StepPlan(step=3, chunks=(none_left, chunk)))
    assert result.token_ids == (None, first)
    assert list(result.errors) == [0]


def asking(rows: PromptRows | None = None, **sample: Any) -> Chunk:
    chunk = chunk_of("a", [1, 2, 3], (0,))
    return chunk._replace(prompt_rows=rows, sample=replace(GREEDY_SAMPLE, **sample))


@each_executor
@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (chunk_of("a", [1], (NUM_BLOCKS,)), f"block_table holds {NUM_BLOCKS}"),
        (chunk_of("a", [1], (-1,)), "block_table holds -1"),
        (chunk_of("a", [TINY.vocab_size], (0,)), f"token_ids holds {TINY.vocab_size}"),
        (chunk_of("a", [1, 2, 3, 4, 5], (0,)), "1 blocks of 4 tokens do not hold 5"),
        (chunk_of("a", [], (0,)), "the chunk has no tokens"),
        (chunk_of("a", [1], (0,) * 200, start=TINY.max_position), "positions 512 to 513"),
        (asking(PromptRows(1, (2, 3, 4, 5), 0)), "the rows that foretell positions 1 to 4"),
        (asking(PromptRows(0, (1, 2), 0)), "the rows that foretell positions 0 to 1"),
        (asking(PromptRows(2, (), 0)), "the rows that foretell positions 2 to 1"),
        (asking(PromptRows(1, (-3,), 0)), "prompt_rows holds -3"),
        (asking(PromptRows(1, (3,), -1)), "prompt_rows asks for -1 of 61"),
        (asking(suppressed=(61,)), "suppressed holds 61"),
        (asking(bad_words=((1, -1),)), "bad_words holds -1"),
        (asking(params=SamplingParams(logit_bias={70: 1.0})), "logit_bias holds 70"),
        (asking(params=SamplingParams(allowed_token_ids=[1, 99])), "allowed_token_ids holds 99"),
    ],
)
def test_a_plan_that_reaches_outside_is_refused_and_leaves_the_executor_usable(
    make: Callable[..., Any], chunk: Any, message: str
) -> None:
    executor, untouched = make(), make()
    good = StepPlan(step=0, chunks=(chunk_of("b", [1, 2, 3], (1,)),))
    assert executor.submit(good) == untouched.submit(good)
    with pytest.raises(ValueError, match=f"request 'a': {message}"):
        executor.submit(StepPlan(step=1, chunks=(chunk,)))
    follower = StepPlan(step=1, chunks=(chunk_of("b", [], (1,), start=3, follows=True),))
    assert executor.submit(follower) == untouched.submit(follower)


def test_a_failure_inside_the_model_leaves_the_tokens_in_flight_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, untouched = pytorch(), pytorch()
    first = StepPlan(step=0, chunks=(chunk_of("a", [1, 2], (0,)),))
    assert executor.submit(first) == untouched.submit(first)
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "silu", None)
        with pytest.raises(TypeError):
            executor.submit(StepPlan(step=1, chunks=(chunk_of("b", [3], (1,)),)))
    follower = StepPlan(step=1, chunks=(chunk_of("a", [], (0,), start=2, follows=True),))
    assert executor.submit(follower) == untouched.submit(follower)
