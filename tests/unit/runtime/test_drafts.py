"""Rule S14 in the executors: drafts change how fast tokens come, and never which."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.params import SamplingParams
from headway.core.plan import Chunk, ChunkError, PromptRows, Sample, StepPlan, StepResult
from headway.models.spec import DecoderSpec
from headway.runtime.inputs import output_rows, sample_rows
from headway.runtime.results import SampledRows, num_accepted, sampled_tokens, step_result
from tiny import TINY
from tiny_drafts import decode_with_drafts, decoded_plainly
from tiny_executors import WEIGHTS, each_executor, each_model, reference
from tiny_plans import GREEDY_SAMPLE, chunk_of, whole

NUM_TOKENS = 20
SAMPLES = (
    GREEDY_SAMPLE,
    Sample(SamplingParams(), seed=1, index=0),
    Sample(SamplingParams(temperature=0.7, top_k=9), seed=2, index=1),
    Sample(SamplingParams(top_p=0.8, logit_bias={3: 4.0, 5: -100.0}), seed=3, index=0),
    Sample(SamplingParams(min_p=0.1, allowed_token_ids=[1, 4, 9, 16, 25, 36]), seed=4, index=2),
    Sample(SamplingParams(temperature=0.0, allowed_token_ids=[1, 4, 9]), seed=5, index=0),
)


# The seeds are the same each time: a draw may turn on the last bits of a logit, which change with
# the number of rows (in about one draw of a million).
@each_executor
@each_model
@settings(deadline=None, max_examples=3, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_tokens_are_those_without_drafts(
    make: Callable[..., Any], spec: DecoderSpec, seed: int
) -> None:
    rng = random.Random(seed)
    executor = make(spec, num_blocks=120)
    requests = []
    for i, sample in enumerate(SAMPLES):
        prompt = [rng.randrange(TINY.vocab_size) for _ in range(rng.randint(1, 40))]
        requests.append(decoded_plainly(executor, str(i), prompt, sample, NUM_TOKENS, 20 * i))
    drafts, accepted = decode_with_drafts(rng, executor, requests)
    assert [request.known for request in requests] == [request.expected for request in requests]
    assert 10 < accepted < drafts - 10


@each_executor
@each_model
def test_each_draft_has_the_logits_of_its_place(
    make: Callable[..., Any], spec: DecoderSpec
) -> None:
    tokens = [7, 3, 50, 12, 9, 44, 23, 8, 30, 1]
    plan = StepPlan(
        0,
        (
            chunk_of("no", tokens[:4], (9,)),
            chunk_of("yes", tokens, (3, 0, 6))._replace(num_drafts=4),
            chunk_of("none", tokens[:5], (4, 5), sample=False),
            chunk_of("other", tokens[:7], (7, 8))._replace(num_drafts=6),
        ),
    )
    rows = make(spec).logits(plan)
    assert len(rows) == 1 + 5 + 7
    for row, length in zip(rows, (4, *range(6, 11), *range(1, 8)), strict=True):
        alone = make(spec).logits(whole(tokens[:length]))[0]
        np.testing.assert_allclose(row, alone, atol=1e-3)


@each_executor
def test_rejected_drafts_leave_no_trace(make: Callable[..., Any]) -> None:
    """They end in a block that the next chunk does not reach; it writes over the first of them,
    and reads none."""
    prompt, table = [3, 1, 4, 1, 5], (8, 2, 5, 0)
    (token,) = make().submit(whole(prompt)).token_ids
    rows = []
    for first in (1, 20):
        executor = make()
        executor.submit(StepPlan(0, (chunk_of("a", prompt[:4], table, sample=False),)))
        wrong = [(token + first + i) % TINY.vocab_size for i in range(6)]
        drafted = chunk_of("a", [5, *wrong], table, start=4)._replace(num_drafts=6)
        result = executor.submit(StepPlan(1, (drafted,)))
        assert (result.token_ids, result.accepted) == ((token,), {})
        after = StepPlan(2, (chunk_of("a", [token, 6], table, start=5)._replace(num_drafts=1),))
        rows.append(executor.logits(after))
    np.testing.assert_array_equal(*rows)
    alone = make().logits(whole([*prompt, token]))
    np.testing.assert_allclose(rows[0][:1], alone, atol=1e-4)


@each_executor
def test_nan_in_a_draft_reaches_no_other_request(make: Callable[..., Any]) -> None:
    weights = WEIGHTS["llama"]
    embedding = weights.embedding.copy()
    embedding[13] = np.nan
    executor = make(weights=replace(weights, embedding=embedding, head=weights.embedding))
    others = (
        chunk_of("b", [1, 2, 3], (0,))._replace(num_drafts=1),
        chunk_of("c", [4], (2,)),
        chunk_of("d", [5, 6, 7], (3,))._replace(num_drafts=2),
    )
    expected = executor.submit(StepPlan(0, others))
    sick = chunk_of("a", [9, 8, 13], (1,))._replace(num_drafts=2)
    result = executor.submit(StepPlan(1, (*others, sick)))
    assert result.token_ids[:3] == expected.token_ids
    assert {index: drafts for index, drafts in result.accepted.items() if index < 3} == (
        expected.accepted
    )
    assert set(result.errors) <= {3}


@pytest.mark.parametrize(
    ("drafts", "sampled", "count"),
    [
        ((), (5,), 0),
        ((5,), (5, 6), 1),
        ((4,), (5, 6), 0),
        ((5, 6, 7), (5, 6, 7, 8), 3),
        ((5, 9, 7), (5, 6, 7, 8), 1),
        ((5, 6, 7), (5, None, 7, 8), 1),
        ((5, 6, 7), (5, 6, 7, None), 3),
    ],
)
def test_drafts_are_accepted_as_far_as_they_are_what_was_sampled(
    drafts: Sequence[int], sampled: Sequence[int | None], count: int
) -> None:
    assert num_accepted(drafts, sampled) == count


def result_of(
    drafts: Sequence[int], sampled: list[int | None], before: dict[int, ChunkError] | None = None
) -> StepResult:
    """Of a chunk with these drafts, between two without; a row without a token is an error."""
    plan = StepPlan(
        0,
        (
            chunk_of("first", [1], (0,)),
            chunk_of("drafted", [2, *drafts], (1,))._replace(num_drafts=len(drafts)),
            chunk_of("last", [3], (2,)),
        ),
    )
    rows: list[int | None] = [50, *sampled, 60]
    broken = {row: ChunkError(f"row {row}") for row, token in enumerate(rows) if token is None}
    return step_result(plan, SampledRows(rows, broken), before or {}, {})


def test_a_chunk_gives_its_accepted_drafts_and_the_token_after_them() -> None:
    result = result_of((5, 6, 9), [5, 6, 7, 8])
    assert (result.token_ids, result.accepted) == ((50, 7, 60), {1: (5, 6)})
    result = result_of((5, 6, 7), [5, 6, 7, 8])
    assert (result.token_ids, result.accepted) == ((50, 8, 60), {1: (5, 6, 7)})
    result = result_of((4, 6, 7), [5, 6, 7, 8])
    assert (result.token_ids, result.accepted, result.errors) == ((50, 5, 60), {}, {})


def test_an_error_past_the_first_rejected_draft_does_not_matter() -> None:
    result = result_of((5, 9, 7), [5, 6, None, None])
    assert (result.token_ids, result.accepted, result.errors) == ((50, 6, 60), {1: (5,)}, {})


@pytest.mark.parametrize(
    ("sampled", "row"), [([None, 6, 7, 8], 1), ([5, None, 7, 8], 2), ([5, 6, 7, None], 4)]
)
def test_an_error_before_that_is_the_chunks(sampled: list[int | None], row: int) -> None:
    result = result_of((5, 6, 7), sampled)
    assert (result.token_ids, result.accepted) == ((50, None, 60), {})
    assert result.errors == {1: ChunkError(f"row {row}")}


def test_a_chunk_that_failed_before_keeps_no_drafts() -> None:
    result = result_of((5,), [5, 6], before={1: ChunkError("why")})
    assert (result.token_ids, result.accepted, result.errors) == (
        (50, None, 60),
        {},
        {1: ChunkError("why")},
    )


def test_rows_come_from_the_parts_in_which_they_were_sampled() -> None:
    whole = SampledRows.of(5)
    whole.put([0, 3], SampledRows([3, None], {1: ChunkError("one")}))
    whole.put([1, 2, 4], SampledRows([4, None, 5], {1: ChunkError("two")}))
    assert whole == SampledRows([3, 4, None, None, 5], {3: ChunkError("one"), 2: ChunkError("two")})


def test_rows_wanted_are_the_samples_then_the_prompt_rows() -> None:
    plan = StepPlan(
        0,
        (
            chunk_of("a", [1, 2, 3], (0,))._replace(prompt_rows=PromptRows(2, (3, 4), 0)),
            chunk_of("b", [1, 2], (1,), sample=False),
            chunk_of("c", [1, 2, 3, 4], (2, 3), start=3)._replace(num_drafts=2),
            chunk_of("d", [1], (4,), follows=True),
        ),
    )
    rows = output_rows(plan)
    assert list(zip(rows.chunks.tolist(), rows.offsets.tolist(), strict=True)) == [
        (0, 2), (2, 1), (2, 2), (2, 3), (3, 1), (0, 1), (0, 2)
    ]  # fmt: skip
    assert rows.num_samples == 5
    first_rows = np.array([30, 20, 10, 0])
    assert rows.in_batch(first_rows).tolist() == [32, 11, 12, 13, 1, 31, 32]
    known = [chunk.token_ids for chunk in plan.chunks[:3]] + [(1, 9)]
    assert [row.position for row in sample_rows(plan, known)] == [3, 5, 6, 7, 2]


@each_executor
def test_who_had_drafts_is_not_followed_in_flight(make: Callable[..., Any]) -> None:
    executor = make()
    plan = StepPlan(
        0, (chunk_of("a", [1, 2], (0,))._replace(num_drafts=1), chunk_of("b", [3], (1,)))
    )
    result = executor.submit(plan)
    assert sampled_tokens(plan, result) == {"b": result.token_ids[1]}
    with pytest.raises(ValueError, match="'a' follows a token in flight"):
        executor.submit(StepPlan(1, (chunk_of("a", [], (0,), start=2, follows=True),)))


def drafted(num_drafts: int = 2, follows: bool = False, **sample: Any) -> Chunk:
    chunk = chunk_of("a", [1, 2, 3], (0,), follows=follows)._replace(num_drafts=num_drafts)
    return chunk._replace(sample=replace(GREEDY_SAMPLE, **sample))


@each_executor
@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (drafted(3), "num_drafts is 3, but of 3 tokens it must be fewer"),
        (drafted(-1), "num_drafts is -1"),
        (drafted()._replace(sample=None), "drafts, but no sample"),
        (drafted(follows=True), "drafts cannot come before a token in flight"),
        (drafted(params=SamplingParams(logprobs=0)), "drafts cannot be sampled with logprobs"),
        (drafted(params=SamplingParams(min_tokens=1)), "with min_tokens"),
        (drafted(suppressed=(5,)), "with min_tokens"),
        (drafted(bad_words=((5,),)), "with bad_words"),
        (drafted(params=SamplingParams(presence_penalty=0.1)), "with a penalty"),
        (drafted(params=SamplingParams(repetition_penalty=1.1)), "with a penalty"),
    ],
)
def test_drafts_that_cannot_be_are_refused_by_name(
    make: Callable[..., Any], chunk: Chunk, message: str
) -> None:
    with pytest.raises(ValueError, match=f"request 'a': .*{message}"):
        make().submit(StepPlan(1, (chunk,)))


def test_a_wrong_token_is_noticed_where_drafts_are_decoded() -> None:
    """The driver above can fail."""
    executor = reference()
    request = decoded_plainly(executor, "0", [1, 2, 3], GREEDY_SAMPLE, NUM_TOKENS, 0)
    request.expected[-1] = (request.expected[-1] + 1) % TINY.vocab_size
    with pytest.raises(AssertionError):
        decode_with_drafts(random.Random(0), executor, [request])
