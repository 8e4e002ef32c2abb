from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.params import SamplingParams
from headway.core.plan import Sample
from headway.runtime import reference, sampler
from headway.runtime.draws import uniforms
from headway.runtime.reference import sample_row
from headway.runtime.sampler import sample

Array = npt.NDArray[np.float32]
DRAWS = 20_000


def wanting(seed: int = 0, position: int = 0, suppressed: Any = (), **params: Any) -> Sample:
    return Sample(
        params=SamplingParams(**params),
        seed=seed,
        index=0,
        position=position,
        suppressed=tuple(suppressed),
    )


def draw(logits: Array, samples: list[Sample]) -> list[int | None]:
    tokens, errors = sample(torch.tensor(logits.copy()), samples)
    assert not errors
    return tokens


def counts_of(logits: list[float], **params: Any) -> npt.NDArray[np.int64]:
    """How often each token comes in many draws from the same logits."""
    rows = torch.tensor([logits]).repeat(DRAWS, 1)
    samples = [wanting(seed=42, position=i, **params) for i in range(DRAWS)]
    return np.bincount(np.array(sample(rows, samples)[0]), minlength=len(logits))


def mixed_batch(rows: int, vocab: int, seed: int) -> tuple[Array, list[Sample]]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.0, (rows, vocab)).astype(np.float32)
    samples = [
        wanting(
            seed=int(rng.integers(-(2**63), 2**63)),
            position=int(rng.integers(0, 5000)),
            suppressed=rng.choice(vocab, int(rng.integers(0, 3)), replace=False).tolist(),
            temperature=float(rng.choice([0.0, 0.3, 1.0, 2.0])),
            top_k=int(rng.choice([0, -1, 1, 5, vocab // 2, vocab, vocab + 7])),
            top_p=float(rng.choice([1.0, 0.9, 0.5, 0.01])),
            min_p=float(rng.choice([0.0, 0.0, 0.02, 0.3, 1.0])),
        )
        for _ in range(rows)
    ]
    return logits, samples


def test_greedy_takes_the_lowest_of_the_largest() -> None:
    logits = np.array([[1, 7, 7, 2], [5, 5, 5, 5], [-9, -8, -7, -6]], dtype=np.float32)
    assert draw(logits, [wanting(temperature=0.0)] * 3) == [1, 0, 3]


def test_an_all_greedy_batch_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_draw", None)
    assert draw(np.eye(4, dtype=np.float32), [wanting(temperature=0.0)] * 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("vocab", [17, 1001])
def test_a_row_alone_has_the_token_that_it_has_in_any_batch(vocab: int) -> None:
    logits, samples = mixed_batch(60, vocab, seed=vocab)
    together = draw(logits, samples)
    alone = [draw(logits[i : i + 1], samples[i : i + 1])[0] for i in range(60)]
    assert together == alone
    assert draw(logits[::-1], samples[::-1]) == together[::-1]


def test_probabilities_of_a_row_are_bitwise_those_that_it_has_alone() -> None:
    logits, samples = mixed_batch(60, 1001, seed=3)
    together = torch.tensor(logits).double().softmax(-1)
    sampler._truncate(together, samples)
    for i in range(60):
        alone = torch.tensor(logits[i : i + 1]).double().softmax(-1)
        sampler._truncate(alone, samples[i : i + 1])
        assert torch.equal(alone.cumsum(-1)[0], together.cumsum(-1)[i])


def test_slices_of_a_batch_have_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, samples = mixed_batch(20, 50, seed=4)
    whole = draw(logits, samples)
    monkeypatch.setattr(sampler, "_SLICE_BYTES", 3 * 8 * 50)
    assert draw(logits, samples) == whole


@settings(deadline=None, max_examples=150)
@given(
    ranks=st.permutations(range(12)),
    gap=st.floats(0.05, 2.0),
    top_k=st.integers(-1, 14),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    temperature=st.floats(0.1, 5.0),
    suppressed=st.lists(st.integers(0, 11), max_size=4, unique=True),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_the_plain_definition_and_the_batch_agree(
    ranks: list[int], gap: float, suppressed: list[int], seed: int, **params: Any
) -> None:
    logits = (np.array(ranks) * gap).astype(np.float32)
    samples = [wanting(seed, position, suppressed, **params) for position in range(6)]
    expected = [sample_row(logits, one) for one in samples]
    assert draw(np.tile(logits, (6, 1)), samples) == expected


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([40, 2000]))
def test_the_plain_definition_and_a_mixed_batch_agree(seed: int, vocab: int) -> None:
    logits, samples = mixed_batch(12, vocab, seed)
    expected = [sample_row(row, one) for row, one in zip(logits, samples, strict=True)]
    assert draw(logits, samples) == expected


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, range(8)),
        ({"temperature": 0.5}, range(8)),
        ({"temperature": 3.0}, range(8)),
        ({"top_k": 3}, [0, 2, 5]),
        ({"top_p": 0.7}, [0, 2, 5]),
        ({"min_p": 0.25}, [0, 2, 5, 7]),
        ({"top_k": 4, "top_p": 0.5}, [0, 2]),
        ({"min_p": 0.25, "top_p": 0.85}, [0, 2, 5]),
        ({"min_p": 0.5, "top_k": 3, "top_p": 0.99, "temperature": 2.0}, [0, 2, 5]),
    ],
)
def test_draws_fit_the_distribution(params: dict[str, Any], kept: Any) -> None:
    probabilities = np.array([0.34, 0.04, 0.25, 0.04, 0.03, 0.17, 0.03, 0.10])
    logits = np.log(probabilities)
    weights = np.zeros(8)
    weights[list(kept)] = probabilities[list(kept)] ** (1.0 / params.get("temperature", 1.0))
    expected = DRAWS * weights / weights.sum()
    counts = counts_of(logits.tolist(), **params)
    support = expected > 0
    assert not counts[~support].any()
    chi_square = (np.square(counts - expected)[support] / expected[support]).sum()
    assert chi_square < 24.4  # 7 degrees of freedom, p = 0.001


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
    plain = {sample_row(row, wanting(9, position, **params)) for position in range(200)}
    assert sorted(plain) == expected


def test_a_tiny_top_p_keeps_the_likeliest_even_of_equals() -> None:
    logits = np.zeros((1, 5), dtype=np.float32)
    assert draw(logits, [wanting(seed=3, top_p=1e-300)]) == [0]


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = np.array([[3.0, 80.0, 79.5, -1e30]], dtype=np.float32)
    one = wanting(seed=3, temperature=temperature)
    assert draw(logits, [one]) == [1]
    assert sample_row(logits[0], one) == 1


def test_the_token_is_the_one_whose_interval_holds_the_number() -> None:
    logits = np.zeros(10, dtype=np.float32)
    samples = [wanting(seed=seed) for seed in range(200)]
    expected = np.floor(uniforms(samples) * 10).astype(int).tolist()
    assert draw(np.tile(logits, (200, 1)), samples) == expected
    assert [sample_row(logits, one) for one in samples] == expected


@pytest.mark.parametrize(("number", "expected"), [(0.0, 1), (0.5, 4), (1.0 - 2.0**-53, 4)])
def test_the_ends_of_an_interval_never_give_a_token_that_may_not_come(
    monkeypatch: pytest.MonkeyPatch, number: float, expected: int
) -> None:
    for module in (sampler, reference):
        monkeypatch.setattr(module, "uniforms", lambda samples: np.full(len(samples), number))
    logits = np.array([[0.0, 1.0, -np.inf, -np.inf, 1.0, 0.0]], dtype=np.float32)
    one = wanting(top_k=2)
    assert draw(logits, [one]) == [expected]
    assert sample_row(logits[0], one) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_cannot_be_sampled_fail_alone(temperature: float) -> None:
    logits = np.tile(np.arange(4, dtype=np.float32), (5, 1))
    logits[0, 2] = np.nan
    logits[1] = -np.inf
    logits[3, 1] = np.inf
    samples = [wanting(temperature=temperature)] * 4
    samples.append(wanting(temperature=temperature, suppressed=range(4)))
    tokens, errors = sample(torch.tensor(logits), samples)
    assert [token is None for token in tokens] == [True, True, False, True, True]
    assert sorted(errors) == [0, 1, 3, 4]
    for row, message in errors.items():
        with pytest.raises(ValueError, match="no token can be sampled") as plain:
            sample_row(logits[row], samples[row])
        assert str(plain.value) == message


def test_suppressed_tokens_are_left_out_before_anything_is_kept() -> None:
    logits = np.array([[9.0, 8.0, 1.0, 0.0]], dtype=np.float32)
    assert draw(logits, [wanting(temperature=0.0, suppressed=(0,))]) == [1]
    assert draw(logits, [wanting(top_k=1, suppressed=(0, 1))]) == [2]
