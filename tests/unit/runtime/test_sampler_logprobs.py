from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.plan import TokenLogprobs
from headway.runtime import sampler
from headway.runtime.sample_reference import token_logprobs
from headway.runtime.sampler import prompt_logprobs
from tiny_rows import Array, row_of, sampled

HALF, QUARTER, EIGHTH = math.log(0.5), math.log(0.25), math.log(0.125)
LOGITS = (np.log([0.125, 0.5, 0.125, 0.25]) + 7.0).astype(np.float32)


def in_torch(logits: Array, token_id: int, num_top: int) -> TokenLogprobs:
    (record,) = prompt_logprobs(torch.tensor(logits[None]), [token_id], num_top)
    return record


BOTH = pytest.mark.parametrize("logprobs_of", [in_torch, token_logprobs])


def assert_close(found: TokenLogprobs, expected: TokenLogprobs, tolerance: float = 1e-12) -> None:
    """All but the log-probabilities equal; and those nearly."""
    assert (found.token_id, found.rank) == (expected.token_id, expected.rank)
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    values = [found.logprob, *(value for _, value in found.top)]
    others = [expected.logprob, *(value for _, value in expected.top)]
    assert values == pytest.approx(others, abs=tolerance, nan_ok=True)


@BOTH
def test_a_record_holds_the_token_its_rank_and_the_likeliest(logprobs_of: Any) -> None:
    expected = TokenLogprobs(0, EIGHTH, 3, ((1, HALF), (3, QUARTER), (0, EIGHTH)))
    assert_close(logprobs_of(LOGITS, 0, 3), expected, tolerance=1e-6)


@BOTH
def test_tokens_of_the_same_logit_share_a_rank(logprobs_of: Any) -> None:
    assert [logprobs_of(LOGITS, token, 0).rank for token in range(4)] == [3, 1, 3, 2]


@BOTH
def test_without_likeliest_there_is_the_token_alone(logprobs_of: Any) -> None:
    assert_close(logprobs_of(LOGITS, 3, 0), TokenLogprobs(3, QUARTER, 2, ()), tolerance=1e-6)


@BOTH
@pytest.mark.parametrize("num_top", range(1, 9))
def test_of_equals_the_lower_tokens_come_first(logprobs_of: Any, num_top: int) -> None:
    logits = np.array([1, 2, 0.0, 2, 1, -0.0, 2, 1], dtype=np.float32)
    found = [token for token, _ in logprobs_of(logits, 0, num_top).top]
    assert found == [1, 3, 6, 0, 4, 7, 2, 5][:num_top]


@BOTH
def test_the_whole_vocabulary_sums_to_one(logprobs_of: Any) -> None:
    logits = np.random.default_rng(1).normal(0.0, 8.0, 3000).astype(np.float32)
    found = logprobs_of(logits, 5, 3000)
    assert sorted(token for token, _ in found.top) == list(range(3000))
    values = [value for _, value in found.top]
    assert values == sorted(values, reverse=True)
    assert math.fsum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-12)


@BOTH
def test_a_token_that_cannot_come_has_a_log_probability_of_minus_infinity(logprobs_of: Any) -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0], dtype=np.float32)
    found = logprobs_of(logits, 2, 4)
    expected = ((1, HALF), (3, HALF), (0, -math.inf), (2, -math.inf))
    assert_close(found, TokenLogprobs(2, -math.inf, 3, expected))


@BOTH
def test_a_broken_row_has_nan(logprobs_of: Any) -> None:
    logits = np.array([1.0, np.nan, 1.0, 0.0, 1.0], dtype=np.float32)  # with ties around it
    for num_top in range(6):
        found = logprobs_of(logits, 0, num_top)
        assert len(found.top) == num_top
        assert all(math.isnan(value) for value in (found.logprob, *dict(found.top).values()))


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 12).flatmap(
        lambda vocab: st.tuples(
            st.lists(
                st.lists(
                    st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, -np.inf])
                    | st.floats(-50, 50, width=32),
                    min_size=vocab,
                    max_size=vocab,
                ).filter(lambda row: max(row) > -np.inf),
                min_size=1,
                max_size=5,
            ),
            st.integers(0, vocab),
            st.randoms(use_true_random=False),
        )
    )
)
def test_rows_of_logits_have_the_records_of_the_plain_definition(case: Any) -> None:
    rows, num_top, random = case
    logits = np.array(rows, dtype=np.float32)
    tokens = [random.randrange(logits.shape[1]) for _ in rows]
    found = prompt_logprobs(torch.tensor(logits), tokens, num_top)
    for record, row, token in zip(found, logits, tokens, strict=True):
        assert_close(record, token_logprobs(row, token, num_top))


def test_a_record_is_bitwise_the_same_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(37, 3001, generator=torch.Generator().manual_seed(2)) * 4
    tokens = list(range(0, 37 * 80, 80))
    together = prompt_logprobs(logits, tokens, 20)
    assert [prompt_logprobs(logits[i : i + 1], tokens[i : i + 1], 20)[0] for i in range(37)] == (
        together
    )
    monkeypatch.setattr(sampler, "_SLICE_BYTES", 5 * 8 * 3001)
    assert prompt_logprobs(logits, tokens, 20) == together


def test_sampled_tokens_have_the_logprobs_of_the_raw_logits() -> None:
    """Whatever bans, penalties and filters make of them, and only where they are asked for."""
    logits = np.random.default_rng(3).normal(0.0, 2.0, (8, 50)).astype(np.float32)
    rows = [
        row_of(logprobs=3),
        row_of(temperature=0.3, top_k=4, logprobs=0),
        row_of(),
        row_of(allowed_token_ids=[7], logprobs=50),
        row_of(temperature=0.0, logit_bias={9: 100.0}, logprobs=3),
        row_of(repetition_penalty=1.9, prompt_ids=range(50), logprobs=1),
        row_of(frequency_penalty=2.0, output_ids=range(40), logprobs=3),
        row_of(temperature=0.0),
    ]
    found = sampled(logits, rows)
    assert sorted(found.logprobs) == [0, 1, 3, 4, 5, 6]
    assert found.token_ids[3:5] == [7, 9]
    for i, record in found.logprobs.items():
        token, num_top = found.token_ids[i], rows[i].sample.params.logprobs
        assert token is not None
        assert num_top is not None
        assert_close(record, token_logprobs(logits[i], token, num_top))


def test_no_rows_have_no_records() -> None:
    assert prompt_logprobs(torch.empty(0, 5), [], 3) == []
