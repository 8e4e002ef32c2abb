from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from headway.core.params import SamplingParams
from headway.core.plan import Sample
from headway.runtime.adjustments import adjust
from headway.runtime.inputs import SampleRow
from tiny_rows import ADJUST, Array, draw, plainly, row_of, sampled

OUT = -np.inf
LOGITS = np.array([4.0, -4.0, 0.0, 1.0, -1.0, 2.0], dtype=np.float32)


@pytest.fixture(params=ADJUST)
def adjusted(request: pytest.FixtureRequest) -> Callable[..., list[float]]:
    def by(logits: Array = LOGITS, **row: Any) -> list[float]:
        before = logits.copy()
        after = ADJUST[request.param](logits, row_of(**row))
        assert np.array_equal(logits, before, equal_nan=True)
        assert after.dtype == np.float32
        result: list[float] = after.tolist()
        return result

    return by


Adjusted = Callable[..., list[float]]


def test_repetition_divides_positive_and_multiplies_negative_logits_once(
    adjusted: Adjusted,
) -> None:
    found = adjusted(repetition_penalty=2.0, prompt_ids=(0, 1, 0), output_ids=(1, 2, 2, 3))
    assert found == [2.0, -8.0, 0.0, 0.5, -1.0, 2.0]


def test_repetition_below_one_encourages(adjusted: Adjusted) -> None:
    found = adjusted(repetition_penalty=0.5, prompt_ids=(0,), output_ids=(1,))
    assert found == [8.0, -2.0, 0.0, 1.0, -1.0, 2.0]


def test_frequency_counts_the_output_and_not_the_prompt(adjusted: Adjusted) -> None:
    found = adjusted(frequency_penalty=0.5, prompt_ids=(5, 5), output_ids=(0, 1, 0, 0))
    assert found == [2.5, -4.5, 0.0, 1.0, -1.0, 2.0]


def test_presence_is_taken_once_from_what_the_output_holds(adjusted: Adjusted) -> None:
    found = adjusted(presence_penalty=1.5, prompt_ids=(5,), output_ids=(0, 1, 0, 0))
    assert found == [2.5, -5.5, 0.0, 1.0, -1.0, 2.0]
    assert adjusted(presence_penalty=-1.5, output_ids=(4,)) == [4.0, -4.0, 0.0, 1.0, 0.5, 2.0]


def test_penalties_without_an_output_change_nothing(adjusted: Adjusted) -> None:
    penalties: dict[str, Any] = {"presence_penalty": 1.0, "frequency_penalty": 1.0}
    assert adjusted(**penalties, repetition_penalty=3.0) == LOGITS.tolist()
    assert adjusted(**penalties, prompt_ids=(0, 1)) == LOGITS.tolist()


def test_a_bias_comes_before_repetition_and_that_before_the_other_penalties(
    adjusted: Adjusted,
) -> None:
    """(1 + 3) / 2 - 2 * 0.25 - 1 = 0.5; (2 - 3) * 2 - 1 * 0.25 - 1 = -3.25."""
    found = adjusted(
        logit_bias={3: 3.0, 5: -3.0, 0: 1.0},
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=1.0,
        output_ids=(3, 5, 3),
    )
    assert found == [5.0, -4.0, 0.0, 0.5, -1.0, -3.25]


def test_only_allowed_tokens_are_left(adjusted: Adjusted) -> None:
    assert adjusted(allowed_token_ids=[4, 0, 4]) == [4.0, OUT, OUT, OUT, -1.0, OUT]


def test_nothing_brings_back_a_banned_token(adjusted: Adjusted) -> None:
    found = adjusted(
        allowed_token_ids=[0, 1, 3],
        suppressed=(0, 0),
        bad_words=((0,), (2, 0), (3,)),
        logit_bias={0: 100.0, 3: 50.0, 5: 100.0},
        repetition_penalty=0.01,
        presence_penalty=-2.0,
        output_ids=(0, 3, 5, 2),
    )
    assert found == [OUT, -4.0, OUT, OUT, OUT, OUT]


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ((), {5}),
        ((1,), {5, 2}),
        ((1, 2), {5, 3}),
        ((0, 1), {5, 2}),
        ((2, 1), {5, 2}),
        ((1, 2, 1), {5, 2, 4}),
        ((1, 2, 1, 2), {5, 3, 0}),
        ((2,), {5}),
        ((1, 2, 3), {5}),
        ((0, 0, 0, 0, 1, 2, 1, 2), {5, 3, 0}),
        ((1, 2, 1, 2, 0), {5}),
    ],
)
def test_a_bad_word_is_barred_where_the_output_ends_with_its_beginning(
    adjusted: Adjusted, output: tuple[int, ...], banned: set[int]
) -> None:
    words = ((5,), (1, 2), (1, 2, 3), (1, 2, 1, 4), (1, 2, 1, 2, 0))
    # (1, 2) bars 2 after 1; of (1, 2, 1, 4), the output (1, 2, 1) holds all but the last
    found = adjusted(bad_words=words, output_ids=output)
    assert {token for token in range(6) if found[token] == OUT} == banned


def test_a_prompt_is_no_beginning_of_a_bad_word(adjusted: Adjusted) -> None:
    assert adjusted(bad_words=((1, 2),), prompt_ids=(0, 1)) == LOGITS.tolist()


def test_a_token_that_was_in_flight_is_part_of_the_output() -> None:
    """The row's output counts, which is one token longer than the known one of the sample."""
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0)
    known = Sample(params, 0, 0, bad_words=((0, 5),), output_ids=(3,))
    row = SampleRow(known, 9, (3, 0))
    for adjust_one in ADJUST.values():
        assert adjust_one(LOGITS, row).tolist() == [2.0, -4.0, 0.0, -1.0, -1.0, OUT]


def test_bans_leave_nan_and_infinity_to_be_seen(adjusted: Adjusted) -> None:
    logits = np.array([np.nan, 1.0, np.inf, np.nan, OUT], dtype=np.float32)
    found = adjusted(logits, allowed_token_ids=[0, 1], suppressed=(0, 4), repetition_penalty=2.0)
    assert np.isnan(found).tolist() == [True, False, True, True, False]
    assert (found[1], found[4]) == (1.0, OUT)


def test_rows_that_ask_for_nothing_are_untouched() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    rows = [
        row_of(),
        row_of(allowed_token_ids=[0, 39], suppressed=(3,), bad_words=((39,),)),
        row_of(prompt_ids=range(40), output_ids=range(40), bad_words=((1, 2),)),
        row_of(logit_bias={0: 1.0}, repetition_penalty=1.5, prompt_ids=(39,), output_ids=(0,)),
        row_of(),
    ]
    adjust(logits, rows)
    assert torch.equal(logits[[0, 2, 4]], before[[0, 2, 4]])
    changed = (logits != before).nonzero().tolist()
    assert [cell for cell in changed if cell[0] == 3] == [[3, 0], [3, 39]]
    assert [cell for cell in changed if cell[0] == 1] == [[1, token] for token in range(1, 40)]


@pytest.mark.parametrize("penalty", [0.3, 1.1, 1.7, 30.0])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = 4.0 * torch.randn(3, 200, generator=generator)
    history = torch.randint(0, 200, (3, 60), generator=generator)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(history, logits.clone())
    rows = [
        row_of(repetition_penalty=penalty, prompt_ids=ids[:40], output_ids=ids[40:])
        for ids in history.tolist()
    ]
    plain = [ADJUST["plain"](logits[i].numpy(), row) for i, row in enumerate(rows)]
    adjust(logits, rows)
    assert torch.equal(logits, expected)
    assert np.array_equal(np.stack(plain), expected.numpy())


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (
            {"allowed_token_ids": [1], "bad_words": [[1]]},
            "allowed_token_ids, bad_words: together leave",
        ),
        (
            {"allowed_token_ids": [1], "suppressed": [1]},
            "allowed_token_ids, ignore_eos: together leave",
        ),
        ({"bad_words": [[i] for i in range(6)]}, "bad_words: leaves"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constraints_that_leave_nothing_are_an_error_of_their_row(
    row: dict[str, Any], names: str, temperature: float
) -> None:
    rows = [row_of(temperature=0.0), row_of(temperature=temperature, **row), row_of()]
    logits = np.tile(LOGITS, (3, 1))
    found = sampled(logits, rows)
    assert found.token_ids[1] is None
    assert list(found.errors) == [1]
    assert str(found.errors[1]).startswith(names)
    assert (found.token_ids, found.errors) == plainly(logits, rows)


def test_an_overflow_is_an_error_that_names_the_penalty() -> None:
    row = row_of(repetition_penalty=0.01, output_ids=(0,))
    logits = LOGITS[None].copy()
    logits[0, 0] = 3e37
    found = sampled(logits, [row])
    assert "(with repetition_penalty 0.01) hold NaN or infinity" in found.errors[0].message
    assert (found.token_ids, found.errors) == plainly(logits, [row])


@pytest.mark.parametrize("token", [-1, 6])
@pytest.mark.parametrize(
    "place",
    [
        lambda token: {"suppressed": [token]},
        lambda token: {"bad_words": [[token]]},
        lambda token: {"repetition_penalty": 1.5, "prompt_ids": [0, token]},
        lambda token: {"repetition_penalty": 1.5, "output_ids": [token]},
        lambda token: {"presence_penalty": 1.5, "output_ids": [token, 0]},
    ],
)
def test_a_token_outside_of_the_vocabulary_never_reaches_another_row(
    token: int, place: Callable[[int], dict[str, Any]]
) -> None:
    logits = torch.from_numpy(np.tile(LOGITS, (3, 1)))
    with pytest.raises(ValueError, match=rf"token {token} is outside of the vocabulary \[0, 6\)"):
        adjust(logits, [row_of(), row_of(**place(token)), row_of()])
    assert torch.equal(logits, torch.from_numpy(np.tile(LOGITS, (3, 1))))


def test_a_penalty_can_change_the_greedy_token() -> None:
    rows = [
        row_of(temperature=0.0, presence_penalty=1.0, output_ids=(0,)),
        row_of(temperature=0.0, frequency_penalty=0.75, output_ids=(0, 0, 0)),
        row_of(temperature=0.0, repetition_penalty=2.5, prompt_ids=(0,)),
        row_of(temperature=0.0, logit_bias={1: 10.0}),
    ]
    assert draw(np.tile(LOGITS, (4, 1)), rows) == [0, 5, 5, 1]
