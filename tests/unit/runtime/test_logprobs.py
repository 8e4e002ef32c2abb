"""What executors tell beside tokens, and what they add to a sample's output."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core.params import SamplingParams
from headway.core.plan import Chunk, PromptRows, StepPlan, TokenLogprobs
from headway.models.spec import DecoderSpec
from headway.runtime.torch import executor as torch_executor
from tiny import TINY
from tiny_executors import WEIGHTS, each_executor, each_model, pytorch
from tiny_plans import BLOCK_SIZE, GREEDY, GREEDY_SAMPLE, chunk_of, whole

PROMPT = [int(token) for token in np.random.default_rng(7).integers(0, TINY.vocab_size, 60)]
TABLE = (9, 3, 4, 14, 2, 6, 1, 8, 11, 5, 12, 0, 7, 10, 13)
assert len(TABLE) * BLOCK_SIZE == len(PROMPT)


def log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def prompt_chunk(start: int, end: int, *, num_top: int = 3) -> Chunk:
    """A part of PROMPT that asks for all it can tell of the prompt."""
    chunk = chunk_of("r", PROMPT[start:end], TABLE, start=start, sample=end == len(PROMPT))
    asked = tuple(PROMPT[start + 1 : end + 1])
    return chunk._replace(prompt_rows=PromptRows(start + 1, asked, num_top) if asked else None)


def assert_same(actual: Any, expected: Any) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one.token_id, one.rank) == (other.token_id, other.rank)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        np.testing.assert_allclose(
            [one.logprob, *(logprob for _, logprob in one.top)],
            [other.logprob, *(logprob for _, logprob in other.top)],
            atol=1e-4,
        )


@each_model
@each_executor
def test_prompt_logprobs_are_those_of_the_logits_before_each_token(
    make: Callable[..., Any], spec: DecoderSpec
) -> None:
    plan = StepPlan(step=0, chunks=(prompt_chunk(0, len(PROMPT)),))
    rows = make(spec).submit(plan).prompt_logprobs[0]
    assert [row.token_id for row in rows] == PROMPT[1:]
    before = make(spec)
    for position, row in enumerate(rows, 1):
        expected = log_softmax(before.logits(whole(PROMPT[:position]))[0])
        best = np.argsort(-expected)[:3]
        assert [token for token, _ in row.top] == best.tolist()
        assert row.rank == 1 + (expected > expected[row.token_id]).sum()
        np.testing.assert_allclose(row.logprob, expected[row.token_id], atol=1e-4)
        np.testing.assert_allclose([value for _, value in row.top], expected[best], atol=1e-4)


@each_model
@each_executor
@pytest.mark.parametrize("seed", range(3))
def test_prompt_logprobs_are_the_same_whatever_the_chunks_and_the_batch(
    make: Callable[..., Any], spec: DecoderSpec, seed: int
) -> None:
    rng = random.Random(seed)
    (at_once,) = (
        make(spec)
        .submit(StepPlan(step=0, chunks=(prompt_chunk(0, len(PROMPT)),)))
        .prompt_logprobs.values()
    )
    executor, rows, start = make(spec), list[TokenLogprobs](), 0
    while start < len(PROMPT):
        end = min(start + rng.choice((1, 2, 9, 20)), len(PROMPT))
        others = [chunk_of(str(i), PROMPT[i : i + 1 + 3 * i], (20 + i,)) for i in range(2)]
        chunks = [prompt_chunk(start, end), *others]
        rng.shuffle(chunks)
        result = executor.submit(StepPlan(step=start, chunks=tuple(chunks)))
        index = next(i for i, chunk in enumerate(chunks) if chunk.request_id == "r")
        assert set(result.prompt_logprobs) <= {index}
        rows += result.prompt_logprobs.get(index, ())
        start = end
    assert_same(rows, at_once)


@pytest.mark.parametrize("rows_at_once", [4, 1000])
def test_prompt_rows_of_several_chunks_are_those_of_each_alone(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = chunk_of("other", PROMPT[30:42], (20, 21, 22))
    other = other._replace(prompt_rows=PromptRows(2, tuple(PROMPT[32:42]), 1))
    chunks = (prompt_chunk(0, 30), chunk_of("none", [1], (30,)), other)
    alone = [pytorch().submit(StepPlan(0, (chunk,))).prompt_logprobs for chunk in chunks]
    monkeypatch.setattr(torch_executor, "_LOGITS_BYTES", rows_at_once * 4 * TINY.vocab_size)
    together = pytorch().submit(StepPlan(step=0, chunks=chunks)).prompt_logprobs
    assert {index: len(rows) for index, rows in together.items()} == {0: 30, 2: 10}
    for index, rows in together.items():
        assert_same(rows, alone[index][0])


@each_executor
def test_only_some_of_a_chunks_rows_may_be_asked_for(make: Callable[..., Any]) -> None:
    (every,) = make().submit(StepPlan(0, (prompt_chunk(0, 40),))).prompt_logprobs.values()
    middle = prompt_chunk(0, 40)._replace(prompt_rows=PromptRows(11, tuple(PROMPT[11:16]), 3))
    (some,) = make().submit(StepPlan(0, (middle,))).prompt_logprobs.values()
    assert_same(some, every[10:15])


@each_executor
def test_prompt_rows_of_nan_are_an_error_of_their_chunk(make: Callable[..., Any]) -> None:
    head = WEIGHTS["llama"].head.copy()
    head[5] = np.nan
    executor = make(weights=replace(WEIGHTS["llama"], head=head))
    asking = prompt_chunk(0, 8)
    result = executor.submit(
        StepPlan(step=0, chunks=(asking, chunk_of("b", [1], (20,), sample=False)))
    )
    assert not result.prompt_logprobs
    assert list(result.errors) == [0]
    assert "NaN" in result.errors[0].message


@each_executor
def test_logprobs_of_a_sample_are_those_of_the_raw_logits(make: Callable[..., Any]) -> None:
    params = SamplingParams(temperature=2.0, top_k=4, presence_penalty=1.0, logprobs=2)
    sample = replace(GREEDY_SAMPLE, params=params, output_ids=(1, 2, 3))
    asking = chunk_of("r", PROMPT, TABLE)._replace(sample=sample)
    plan = StepPlan(step=0, chunks=(chunk_of("other", [1, 2], (20,)), asking))
    executor = make()
    result = executor.submit(plan)
    assert list(result.logprobs) == [1]
    told = result.logprobs[1]
    expected = log_softmax(executor.logits(plan)[1])
    assert told.token_id == result.token_ids[1]
    assert told.rank == 1 + (expected > expected[told.token_id]).sum()
    np.testing.assert_allclose(told.logprob, expected[told.token_id], atol=1e-5)
    best = np.argsort(-expected)[:2]
    assert [token for token, _ in told.top] == best.tolist()
    np.testing.assert_allclose([value for _, value in told.top], expected[best], atol=1e-5)


@each_executor
def test_a_sample_that_fails_has_no_logprobs(make: Callable[..., Any]) -> None:
    params = SamplingParams(temperature=0.0, logprobs=2)
    every = tuple(range(TINY.vocab_size))
    chunks = tuple(
        chunk_of(name, [3], (i,))._replace(
            sample=replace(GREEDY_SAMPLE, params=params, suppressed=barred),
        )
        for i, (name, barred) in enumerate({"a": every, "b": ()}.items())
    )
    result = make().submit(StepPlan(step=0, chunks=chunks))
    assert (list(result.errors), list(result.logprobs)) == ([0], [1])


def follow(executor: Any, params: SamplingParams, **sample: Any) -> tuple[int, int]:
    """The first output token, and the one after it, sampled while the first is in flight."""
    first = chunk_of("r", PROMPT[:10], TABLE)._replace(sample=replace(GREEDY_SAMPLE, params=params))
    (token,) = executor.submit(StepPlan(step=0, chunks=(first,))).token_ids
    after = chunk_of("r", [], TABLE, start=10, follows=True)
    after = after._replace(sample=replace(GREEDY_SAMPLE, params=params, **sample))
    (second,) = executor.submit(StepPlan(step=1, chunks=(after,))).token_ids
    return token, second


@each_executor
def test_the_token_in_flight_is_penalised(make: Callable[..., Any]) -> None:
    favoured = SamplingParams(temperature=0.0, logit_bias={7: 50.0})
    assert follow(make(), favoured) == (7, 7)
    penalised = SamplingParams(temperature=0.0, logit_bias={7: 50.0}, repetition_penalty=100.0)
    first, second = follow(make(), penalised)
    assert first == 7
    assert second != 7


@each_executor
def test_the_token_in_flight_counts_after_the_known_output(make: Callable[..., Any]) -> None:
    t, u = follow(make(), GREEDY)
    assert follow(make(), GREEDY, bad_words=((t, u),))[1] != u
    assert follow(make(), GREEDY, bad_words=((5, t, u),), output_ids=(4, 5))[1] != u
    assert follow(make(), GREEDY, bad_words=((5, t, u),), output_ids=(5, 4))[1] == u
