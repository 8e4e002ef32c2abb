from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.params import SamplingParams
from headway.runtime import adjustments, filters, sample_reference, sampler
from headway.runtime.draws import uniforms
from headway.runtime.filters import truncate
from headway.runtime.inputs import SampleRow
from headway.runtime.sample_reference import sample_row
from headway.runtime.sampler import sample
from tiny_rows import Array, SampledRows, draw, plainly, row_of, sampled

DRAWS = 5_000


def counts_of(logits: list[float], **params: Any) -> npt.NDArray[np.int64]:
    """How often each token comes in many draws from the same logits."""
    row = row_of(seed=42, **params)
    rows = [row._replace(position=i, output_ids=()) for i in range(DRAWS)]
    found = sample(torch.tensor([logits]).repeat(DRAWS, 1), rows)
    return np.bincount(np.array(found.token_ids), minlength=len(logits))


def mixed_batch(num_rows: int, vocab: int, seed: int) -> tuple[Array, list[SampleRow]]:
    """Rows of logits without ties, with any settings; a half of the rows with penalties."""
    rng = np.random.default_rng(seed)

    def ids(most: int) -> list[int]:
        return (vocab * rng.random(int(rng.integers(0, most))) ** 2).astype(int).tolist()

    def some(value: Any, neutral: Any) -> Any:
        return value if rng.random() < 0.3 else neutral

    def one() -> SampleRow:
        output = ids(vocab)
        return row_of(
            seed=int(rng.integers(-(2**63), 2**63)),
            position=int(rng.integers(0, 5000)),
            suppressed=ids(3),
            bad_words=[word for word in (ids(3), [*output[-2:], 0], [*output[-1:], 1]) if word],
            prompt_ids=ids(vocab),
            output_ids=output,
            temperature=float(rng.choice([0.0, 0.3, 1.0, 2.0])),
            top_k=int(rng.choice([0, -1, 1, 5, vocab // 2, vocab, vocab + 7])),
            top_p=float(rng.choice([1.0, 0.9, 0.5, 0.01])),
            min_p=float(rng.choice([0.0, 0.0, 0.02, 0.3, 1.0])),
            presence_penalty=some(rng.uniform(-2, 2), 0.0),
            frequency_penalty=some(rng.uniform(-2, 2), 0.0),
            repetition_penalty=some(rng.uniform(0.2, 3), 1.0),
            logit_bias=some({i: rng.normal() for i in ids(20)}, None),
            allowed_token_ids=some([*ids(vocab), 0, vocab - 1], None),
            logprobs=some(int(rng.integers(0, vocab)), None),
        )

    logits = rng.normal(0.0, 2.0, (num_rows, vocab)).astype(np.float32)
    return logits, [one() for _ in range(num_rows)]


VOCAB = 8
TOKENS = st.integers(0, VOCAB - 1)
IDS = st.lists(TOKENS, max_size=8)
LOGIT = st.integers(-6, 6).map(lambda halves: halves / 2)
TIED_LOGITS = st.lists(
    LOGIT | LOGIT | LOGIT | st.sampled_from([-np.inf] * 6 + [np.inf, np.nan]),
    min_size=VOCAB,
    max_size=VOCAB,
)
"""Ties are frequent, and the filters below such that no sum lies on the edge of one."""
ANY_ROW = st.builds(
    row_of,
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 9000),
    suppressed=st.lists(TOKENS, max_size=2),
    bad_words=st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=5),
    prompt_ids=IDS,
    output_ids=IDS,
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.0, 2.5]),
    top_k=st.integers(-1, VOCAB + 2),
    top_p=st.sampled_from([1.0, 1.0, 0.97, 0.83, 0.61, 0.37, 0.013]),
    min_p=st.sampled_from([0.0, 0.0, 0.017, 0.23, 0.71, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.3, -0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.6, 2.0]),
    logit_bias=st.none() | st.dictionaries(TOKENS, st.sampled_from([-100.0, -0.5, 0.1, 3.0])),
    allowed_token_ids=st.none() | st.lists(TOKENS, min_size=1, max_size=7),
    logprobs=st.none() | st.integers(0, VOCAB),
)


def test_greedy_takes_the_lowest_of_the_largest() -> None:
    logits = np.array([[1, 7, 7, 2], [5, 5, 5, 5], [-9, -8, -7, -6]], dtype=np.float32)
    assert draw(logits, [row_of(temperature=0.0)] * 3) == [1, 0, 3]


def test_a_plain_greedy_batch_runs_nothing_but_the_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (sampler, "_draw"),
        (sampler, "prompt_logprobs"),
        (adjustments, "_cells"),
        (adjustments, "_add"),
    ):
        monkeypatch.setattr(module, name, None)
    rows = [row_of(temperature=0.0, prompt_ids=(1,), output_ids=(1,), bad_words=((0, 2),))] * 4
    assert draw(np.eye(4, dtype=np.float32), rows) == [0, 1, 2, 3]


@settings(deadline=None, max_examples=120)
@given(st.lists(st.tuples(TIED_LOGITS, ANY_ROW), min_size=1, max_size=7))
def test_a_batch_of_any_rows_has_the_tokens_of_the_plain_definition(
    batch: list[tuple[list[float], SampleRow]],
) -> None:
    logits = np.array([logits for logits, _ in batch], dtype=np.float32)
    rows = [row for _, row in batch]
    found = sampled(logits, rows)
    assert (found.token_ids, found.errors) == plainly(logits, rows)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(TIED_LOGITS, ANY_ROW), min_size=2, max_size=7),
    st.randoms(use_true_random=False),
)
def test_any_row_alone_is_what_it_is_in_any_batch(
    batch: list[tuple[list[float], SampleRow]], random: Any
) -> None:
    logits = np.array([logits for logits, _ in batch], dtype=np.float32)
    assert_independent(
        logits, [row for _, row in batch], random.sample(range(len(batch)), len(batch))
    )


@pytest.mark.parametrize(("vocab", "seed"), [(17, 1), (17, 2), (1001, 3), (4096, 4)])
def test_a_row_of_a_mixed_batch_alone_is_what_it_is_in_it(vocab: int, seed: int) -> None:
    logits, rows = mixed_batch(40, vocab, seed)
    assert_independent(logits, rows, np.random.default_rng(seed).permutation(40).tolist())


def assert_independent(logits: Array, rows: list[SampleRow], order: list[int]) -> None:
    """Tokens, errors and log-probabilities, bitwise, in the batch, alone and in another order."""
    together = sampled(logits, rows)
    permuted = sampled(logits[order], [rows[i] for i in order])
    for i in range(len(rows)):
        expected = outcome(together, i)
        assert outcome(sampled(logits[i : i + 1], rows[i : i + 1]), 0) == expected
        assert outcome(permuted, order.index(i)) == expected


def outcome(found: SampledRows, row: int) -> tuple[Any, ...]:
    return found.token_ids[row], found.errors.get(row), found.logprobs.get(row)


@pytest.mark.parametrize("few", [1, 5, filters._FEW])
def test_probabilities_of_a_row_are_bitwise_those_that_it_has_alone(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """And those of ranking all of its tokens at once."""
    logits, rows = mixed_batch(60, 1001, seed=3)
    params = [row.sample.params for row in rows]
    monkeypatch.setattr(filters, "_FEW", few)
    together = torch.tensor(logits).double().softmax(-1)
    truncate(together, params)
    monkeypatch.setattr(filters, "_FEW", 1001)
    for i in range(60):
        alone = torch.tensor(logits[i : i + 1]).double().softmax(-1)
        truncate(alone, params[i : i + 1])
        assert torch.equal(alone.cumsum(-1)[0], together.cumsum(-1)[i])


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=60, max_size=60), min_size=1, max_size=4),
    st.integers(0, 60),
    st.sampled_from([1.0, 0.931, 0.457, 0.019]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1, 3, 8, 59, 60, 256]),
)
def test_filters_keep_the_likeliest_and_the_lowest_of_equals(
    batch: list[list[int]], top_k: int, top_p: float, min_p: float, few: int
) -> None:
    """However many are ranked at first; compared with a stable sort of the whole row."""
    probabilities = torch.tensor(batch).double().softmax(-1)
    expected = []
    for row in probabilities.numpy():
        row = np.where(row < min_p * row.max(), 0.0, row)
        kept = np.argsort(-row, kind="stable")[: top_k or 60]
        enough = 1 + int((row[kept].cumsum() < top_p * row[kept].sum()).sum())
        kept = kept[:enough] if top_p < 1.0 else kept
        expected.append(np.where(np.isin(np.arange(60), kept), row, 0.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_FEW", few)
        params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
        truncate(probabilities, [params] * len(batch))
    assert np.array_equal(probabilities.numpy(), np.stack(expected))


@pytest.mark.parametrize("few", [1, 3, 11, 12, 256])
def test_of_equals_at_every_edge_the_lowest_are_kept(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(filters, "_FEW", few)
    probabilities = torch.full((12, 12), 1 / 12, dtype=torch.float64)
    truncate(probabilities, [SamplingParams(top_k=k) for k in range(1, 13)])
    assert torch.equal(probabilities > 0, torch.ones(12, 12).tril() > 0)


def test_slices_of_a_batch_come_to_the_same_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rows = mixed_batch(20, 50, seed=4)
    whole = sampled(logits, rows)
    monkeypatch.setattr(sampler, "_SLICE_BYTES", 3 * 8 * 50)
    assert sampled(logits, rows) == whole


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([40, 2000]))
def test_the_plain_definition_and_a_mixed_batch_agree(seed: int, vocab: int) -> None:
    logits, rows = mixed_batch(12, vocab, seed)
    found = sampled(logits, rows)
    assert (found.token_ids, found.errors) == plainly(logits, rows)


def test_each_filter_works_on_what_the_one_before_left() -> None:
    """Of 0.5, 0.2, 0.1, …: with top_k 2 first, 0.5 / 0.7 = 0.714 reaches top_p 0.7 alone."""
    logits = np.log([0.5, 0.2, 0.1, 0.1, 0.1]).tolist()
    assert np.flatnonzero(counts_of(logits, top_k=2, top_p=0.7)).tolist() == [0]
    assert np.flatnonzero(counts_of(logits, top_p=0.69)).tolist() == [0, 1]
    assert np.flatnonzero(counts_of(logits, min_p=0.3, top_p=0.7)).tolist() == [0]


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_k": 3, "top_p": 0.999}, {"top_p": 0.5}])
def test_ties_at_the_edge_keep_the_lower_tokens_and_no_more(params: dict[str, Any]) -> None:
    logits = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0] if "top_k" in params else [0.0] * 6
    expected = [1, 2, 4] if "top_k" in params else [0, 1, 2]
    assert np.flatnonzero(counts_of(logits, **params)).tolist() == expected
    row = np.array(logits, dtype=np.float32)
    plain = {sample_row(row, row_of(9, position, **params)) for position in range(200)}
    assert sorted(plain) == expected


@pytest.mark.parametrize("top_p", [0.0, 1e-300])
def test_a_tiny_top_p_keeps_the_likeliest_even_of_equals(top_p: float) -> None:
    logits = np.zeros((1, 5), dtype=np.float32)
    assert draw(logits, [row_of(seed=3, top_p=top_p)]) == [0]


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = np.array([[3.0, 80.0, 79.5, -1e30]], dtype=np.float32)
    one = row_of(seed=3, temperature=temperature)
    assert draw(logits, [one]) == [1]
    assert sample_row(logits[0], one) == 1


def test_the_token_is_the_one_whose_interval_holds_the_number() -> None:
    logits = np.zeros(10, dtype=np.float32)
    rows = [row_of(seed=seed) for seed in range(200)]
    expected = np.floor(uniforms(rows) * 10).astype(int).tolist()
    assert draw(np.tile(logits, (200, 1)), rows) == expected
    assert [sample_row(logits, row) for row in rows] == expected


@pytest.mark.parametrize(("number", "expected"), [(0.0, 1), (0.5, 4), (1.0 - 2.0**-53, 4)])
def test_the_ends_of_an_interval_never_give_a_token_that_may_not_come(
    monkeypatch: pytest.MonkeyPatch, number: float, expected: int
) -> None:
    for module in (sampler, sample_reference):
        monkeypatch.setattr(module, "uniforms", lambda rows: np.full(len(rows), number))
    logits = np.array([[0.0, 1.0, -np.inf, -np.inf, 1.0, 0.0]], dtype=np.float32)
    one = row_of(top_k=2)
    assert draw(logits, [one]) == [expected]
    assert sample_row(logits[0], one) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_cannot_be_sampled_fail_alone(temperature: float) -> None:
    logits = np.tile(np.arange(4, dtype=np.float32), (5, 1))
    logits[0, 2] = np.nan
    logits[1] = -np.inf
    logits[3, 1] = np.inf
    rows = [row_of(temperature=temperature, logprobs=1)] * 4
    rows.append(row_of(temperature=temperature, suppressed=range(4), logprobs=1))
    found = sampled(logits, rows)
    assert [token is None for token in found.token_ids] == [True, True, False, True, True]
    assert sorted(found.errors) == [0, 1, 3, 4]
    assert list(found.logprobs) == [2]
    assert (found.token_ids, found.errors) == plainly(logits, rows)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("bans", [{"allowed_token_ids": [0]}, {"suppressed": [1]}])
def test_a_ban_does_not_hide_that_a_row_is_broken(broken: float, bans: dict[str, Any]) -> None:
    logits = np.array([[1.0, broken, 0.0]], dtype=np.float32)
    found = sampled(logits, [row_of(temperature=0.0, **bans)])
    assert "NaN or infinity" in found.errors[0].message
    assert (found.token_ids, found.errors) == plainly(logits, [row_of(temperature=0.0, **bans)])


def test_suppressed_tokens_are_left_out_before_anything_is_kept() -> None:
    logits = np.array([[9.0, 8.0, 1.0, 0.0]], dtype=np.float32)
    assert draw(logits, [row_of(temperature=0.0, suppressed=(0,))]) == [1]
    assert draw(logits, [row_of(top_k=1, suppressed=(0, 1))]) == [2]
