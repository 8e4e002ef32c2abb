from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, Sample
from headway.core.structured import StructuredOutputs
from headway.runtime.draws import philox_4x32, uniforms, why_no_token
from headway.runtime.inputs import SampleRow
from tiny_plans import GREEDY


def keyed(seed: int, index: int = 0, position: int = 0) -> SampleRow:
    return SampleRow(Sample(params=GREEDY, seed=seed, index=index), position, ())


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    words = philox_4x32(
        np.array([counter, counter], dtype=np.uint64).T, np.array([key, key], dtype=np.uint64).T
    )
    assert words.T.tolist() == [list(expected)] * 2


def test_every_bit_of_seed_index_and_position_changes_the_number() -> None:
    rows = [keyed(0)]
    rows += [keyed(1 << bit) for bit in range(63)] + [keyed(-(2**63))]
    rows += [keyed(0, index=1 << bit) for bit in range(63)]
    rows += [keyed(0, position=1 << bit) for bit in range(63)]
    assert len(set(uniforms(rows).tolist())) == len(rows)


def test_a_number_does_not_depend_on_its_batch() -> None:
    rows = [keyed(seed, seed % 3, seed * 7) for seed in range(-20, 20)]
    together = uniforms(rows)
    assert together.tolist() == [uniforms([row])[0] for row in rows]


def test_numbers_are_uniform_on_the_unit_interval() -> None:
    numbers = uniforms([keyed(seed=7, position=position) for position in range(20_000)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=50, range=(0.0, 1.0))
    assert np.square(counts - 400).sum() / 400 < 85  # chi-square, 49 degrees, p = 0.001


def test_a_row_has_a_reason_only_without_a_finite_largest_logit() -> None:
    assert why_no_token(-3.5, keyed(0)) is None
    assert "every logit is -inf" in str(why_no_token(-math.inf, keyed(0)))
    assert "NaN" in str(why_no_token(math.nan, keyed(0)))
    assert "infinity" in str(why_no_token(math.inf, keyed(0)))


def test_what_it_is_held_to_is_named_as_its_caller_does() -> None:
    asked = StructuredOutputs(regex="a", path="response_format")
    for params, name in [
        (SamplingParams(structured_outputs=asked), "response_format"),
        (SamplingParams(structured_outputs=replace(asked, path=None)), "structured_outputs"),
    ]:
        sample = Sample(params, seed=0, index=0, bad_words=((3,),), constraint=Nothing())
        error = why_no_token(-math.inf, SampleRow(sample, 0, ()))
        assert error is not None
        assert error.fields == (name, "bad_words")


class Nothing:
    def allowed(self, output_ids: Sequence[int]) -> bytes:
        return b""


def test_a_reason_names_what_the_request_asked_for() -> None:
    params = SamplingParams(allowed_token_ids=[3], repetition_penalty=0.5, min_tokens=1)
    bare = SampleRow(Sample(params, seed=0, index=0), 0, ())
    sample = Sample(params, seed=0, index=0, suppressed=(3,), bad_words=((3,),))
    full = SampleRow(sample, 0, ())
    assert why_no_token(-math.inf, bare) == ChunkError(
        "leaves no token that can be sampled", ("allowed_token_ids",)
    )
    assert why_no_token(-math.inf, full) == ChunkError(
        "together leave no token that can be sampled",
        ("allowed_token_ids", "bad_words", "min_tokens"),
    )
    broken = why_no_token(math.inf, full)
    assert broken is not None
    assert "repetition_penalty 0.5" in broken.message
    assert broken.fields == ()
