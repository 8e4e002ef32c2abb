"""Many draws fit the distribution that each setting asks for, computed here in float64."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from headway.runtime.inputs import SampleRow
from headway.runtime.sampler import sample
from tiny_rows import row_of

Floats = npt.NDArray[np.float64]

DRAWS = 20_000
P = np.array([0.34, 0.04, 0.25, 0.04, 0.03, 0.17, 0.03, 0.10])
LOGITS = np.log(P) + 2.0
"""Positive for the likelier, negative for the others: repetition treats them differently."""


def only(*tokens: int) -> Floats:
    return np.isin(np.arange(8), tokens).astype(np.float64)


COUNTS = np.array([3, 0, 1, 0, 0, 0, 2, 0])
OUTPUT = (0, 2, 6, 0, 6, 0)
PROMPT = (5, 3, 5, 0)
SEEN = only(0, 2, 3, 5, 6).astype(bool)
REPEATED = np.exp(
    np.where(SEEN, np.where(LOGITS > 0.0, LOGITS / 1.6, LOGITS * 1.6), LOGITS).astype(np.float64)
)
HISTORY: dict[str, Any] = {"prompt_ids": PROMPT, "output_ids": OUTPUT}

CASES: dict[str, tuple[dict[str, Any], Floats]] = {
    "a low temperature": ({"temperature": 0.5}, P**2.0),
    "a high temperature": ({"temperature": 3.0}, P ** (1.0 / 3.0)),
    "top_k": ({"top_k": 3}, P * only(0, 2, 5)),
    "top_p": ({"top_p": 0.7}, P * only(0, 2, 5)),
    "min_p": ({"min_p": 0.25}, P * only(0, 2, 5, 7)),
    "top_k, then top_p": ({"top_k": 4, "top_p": 0.5}, P * only(0, 2)),
    "min_p, then top_p": ({"min_p": 0.25, "top_p": 0.85}, P * only(0, 2, 5)),
    "temperature and every filter": (
        {"min_p": 0.5, "top_k": 3, "top_p": 0.99, "temperature": 2.0},
        P**0.5 * only(0, 2, 5),
    ),
    "presence": ({"presence_penalty": 0.8, **HISTORY}, P * np.exp(-0.8 * (COUNTS > 0))),
    "negative presence": ({"presence_penalty": -1.2, **HISTORY}, P * np.exp(1.2 * (COUNTS > 0))),
    "frequency": ({"frequency_penalty": 0.4, **HISTORY}, P * np.exp(-0.4 * COUNTS)),
    "repetition": ({"repetition_penalty": 1.6, **HISTORY}, REPEATED),
    "every penalty": (
        {
            "repetition_penalty": 1.6,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.8,
            **HISTORY,
        },
        REPEATED * np.exp(-0.4 * COUNTS - 0.8 * (COUNTS > 0)),
    ),
    "logit_bias": (
        {"logit_bias": {1: 2.0, 0: -1.5}},
        P * np.exp([-1.5, 2.0, 0, 0, 0, 0, 0, 0]),
    ),
    "allowed_token_ids": ({"allowed_token_ids": [1, 2, 7]}, P * only(1, 2, 7)),
    "bad_words": (
        {"bad_words": [(0,), (6, 0, 5), (0, 2, 7), (6, 6, 2)], **HISTORY},
        P * only(1, 2, 3, 4, 6, 7),
    ),
    "min_tokens": ({"suppressed": (2, 4)}, P * only(0, 1, 3, 5, 6, 7)),
    "a penalty, then temperature, then top_k": (
        {"frequency_penalty": 1.0, "temperature": 0.7, "top_k": 4, **HISTORY},
        (P * np.exp(-COUNTS)) ** (1.0 / 0.7) * only(5, 7, 2, 1),
    ),
}


def counts_of(row: SampleRow) -> npt.NDArray[np.int64]:
    """How often each token comes: over 200 seeds, at 100 positions, a third of them of each
    of three samples of a request."""
    one = row.sample
    rows = [
        SampleRow(replace(one, seed=i % 200, index=i % 3), i // 200, row.output_ids)
        for i in range(DRAWS)
    ]
    logits = torch.from_numpy(LOGITS.astype(np.float32)).repeat(DRAWS, 1)
    tokens = np.array(sample(logits, rows).token_ids, dtype=np.int64)
    return np.bincount(tokens, minlength=8)


@functools.cache
def plain_counts() -> npt.NDArray[np.int64]:
    return counts_of(row_of())


def p_value(counts: npt.NDArray[np.int64], weights: Floats) -> float:
    """Of Pearson's chi-square test; 0 where a token came that cannot."""
    support = weights > 0.0
    if counts[~support].any():
        return 0.0
    expected = DRAWS * weights[support] / weights.sum()
    statistic = (np.square(counts[support] - expected) / expected).sum()
    halves = torch.tensor([(support.sum() - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def test_the_p_value_is_that_of_the_tables() -> None:
    """The 0.001 quantile of chi-square at 7 degrees of freedom is 24.32."""
    expected = DRAWS * P
    shift = np.sqrt(24.322 / (1.0 / expected[0] + 1.0 / expected[2]))
    counts = expected + shift * (only(0) - only(2))
    assert p_value(counts, P) == pytest.approx(0.001, rel=1e-3)


def test_plain_draws_fit_the_softmax() -> None:
    assert p_value(plain_counts(), P) > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_draws_fit_the_distribution_of(case: str) -> None:
    settings, weights = CASES[case]
    assert p_value(counts_of(row_of(**settings)), weights) > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_draws_without_it_do_not_fit_the_distribution_of(case: str) -> None:
    _, weights = CASES[case]
    assert p_value(plain_counts(), weights) < 1e-9
