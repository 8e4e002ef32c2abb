"""Rule P2 in the executors: blocks copied to the swap space and back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.plan import StepPlan
from headway.models.spec import DecoderSpec
from tiny import TINY
from tiny_executors import WEIGHTS, each_executor, each_model, pytorch, reference
from tiny_plans import NUM_BLOCKS, chunk_of, random_plans
from tiny_swaps import NUM_SWAP_BLOCKS, with_swaps

PROMPTS = {"a": [3, 1, 4, 1, 5, 9], "b": [2, 6, 5, 3, 5]}
TABLES = {"a": (8, 2), "b": (7, 0)}


@each_model
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_swapped_sequences_have_the_very_logits_of_undisturbed_ones(
    spec: DecoderSpec, seed: int
) -> None:
    rng = random.Random(seed)
    sequences = [
        [rng.randrange(TINY.vocab_size) for _ in range(rng.randrange(1, 45))] for _ in range(3)
    ]
    sequences.append([*sequences[0][: rng.randrange(1, 45)], 5])
    plans = list(random_plans(rng, sequences))
    swapping = list(with_swaps(rng, plans))
    rows = []
    for make in (reference, pytorch):
        undisturbed, executor = make(spec), make(spec, num_swap_blocks=NUM_SWAP_BLOCKS)
        rows.append(np.concatenate([executor.logits(plan) for plan in swapping]))
        np.testing.assert_array_equal(
            rows[-1], np.concatenate([undisturbed.logits(plan) for plan in plans])
        )
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-3)


def test_plans_with_swaps_do_swap() -> None:
    plans = list(random_plans(random.Random(1), [[1] * 40, [1] * 30 + [2] * 9, [3] * 44]))
    swapping = list(with_swaps(random.Random(2), plans))
    assert sum(len(plan.copies_in) for plan in swapping) > 20
    assert any(plan.copies_out and not plan.chunks for plan in swapping)
    written = [
        {b for _, b in plan.copies_in} | {b for c in plan.chunks for b in c.block_table}
        for plan in swapping
    ]
    assert any(
        blocks & {block for block, _ in plan.copies_out}
        for plan, blocks in zip(swapping, written, strict=True)
    )
    assert any({b for _, b in p.copies_in} & set(p.zero_blocks) for p in swapping)


def after_prompts(make: Callable[..., Any], *names: str, **options: Any) -> Any:
    """An executor with these prompts computed, one by one."""
    executor = make(num_swap_blocks=8, **options)
    for name in names:
        executor.submit(StepPlan(0, (chunk_of(name, PROMPTS[name], TABLES[name]),)))
    return executor


def decode(name: str, table: tuple[int, ...], **copies: Any) -> StepPlan:
    """The token after the prompt, on these blocks."""
    return StepPlan(1, (chunk_of(name, [10], table, start=len(PROMPTS[name])),), **copies)


def undisturbed(make: Callable[..., Any], name: str) -> Any:
    return after_prompts(make, name).logits(decode(name, TABLES[name]))


@each_executor
def test_copies_out_come_first_then_the_zeroing_then_copies_in(make: Callable[..., Any]) -> None:
    executor = after_prompts(make, "a", "b")
    executor.submit(StepPlan(1, (), copies_out=((7, 3), (0, 4))))
    # b comes back on a's blocks, in the plan in which a leaves them and they are zeroed.
    moving = decode("b", (2, 8), copies_in=((3, 2), (4, 8)), zero_blocks=(8, 2))
    moving = replace(moving, copies_out=((8, 5), (2, 6)))
    np.testing.assert_array_equal(executor.logits(moving), undisturbed(make, "b"))
    back = decode("a", (1, 9), copies_in=((6, 9), (5, 1)))
    np.testing.assert_array_equal(executor.logits(back), undisturbed(make, "a"))


@each_executor
def test_a_slot_may_be_read_in_the_plan_that_writes_it(make: Callable[..., Any]) -> None:
    executor = after_prompts(make, "a")
    moving = decode(
        "a", (5, 4), copies_out=((8, 0), (2, 7)), zero_blocks=(8,), copies_in=((0, 5), (7, 4))
    )
    np.testing.assert_array_equal(executor.logits(moving), undisturbed(make, "a"))


@each_executor
def test_a_plan_of_copies_alone_has_an_empty_result(make: Callable[..., Any]) -> None:
    executor = after_prompts(make, "a")
    for copies in (
        {"copies_out": ((8, 1), (2, 2))},
        {"zero_blocks": (8, 2)},
        {"copies_in": ((1, 6), (2, 3))},
    ):
        result = executor.collect(executor.submit(StepPlan(4, (), **copies)))
        assert (result.step, result.token_ids, result.errors) == (4, (), {})
    np.testing.assert_array_equal(executor.logits(decode("a", (6, 3))), undisturbed(make, "a"))


@each_executor
def test_what_was_in_a_block_before_it_is_copied_into_is_gone(make: Callable[..., Any]) -> None:
    weights = WEIGHTS["llama"]
    embedding = weights.embedding.copy()
    embedding[13] = np.nan
    weights = replace(weights, embedding=embedding, head=weights.embedding)
    executor = after_prompts(make, "a", weights=weights)
    executor.submit(StepPlan(1, (), copies_out=((8, 1), (2, 2))))
    sick = executor.submit(StepPlan(2, (chunk_of("sick", [13] * 12, (8, 2, 5)),)))
    assert list(sick.errors) == [0]
    back = decode("a", (2, 5), copies_in=((1, 2), (2, 5)))
    np.testing.assert_array_equal(executor.logits(back), undisturbed(make, "a"))
    # What is copied is copied as it is: NaN goes out and comes back, past the zeroing.
    moved = decode("b", (4, 3), copies_out=((8, 0),), zero_blocks=(8,), copies_in=((0, 4),))
    assert np.isnan(executor.logits(moved)).all()


@pytest.mark.parametrize("make", [reference, pytorch])
def test_a_plan_that_fails_leaves_what_others_have_in_the_swap_space(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = after_prompts(make, "a", "b")
    executor.submit(StepPlan(1, (), copies_out=((8, 1), (2, 2)), zero_blocks=(8, 2)))
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "silu", None)
        patched.setattr(np, "tanh", None)
        with pytest.raises(TypeError):
            executor.submit(decode("b", (4, 5), copies_out=((7, 3),), copies_in=((1, 4), (2, 5))))
    back = decode("a", (4, 5), copies_in=((1, 4), (2, 5)))
    np.testing.assert_array_equal(executor.logits(back), undisturbed(make, "a"))


@each_executor
@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ({"copies_out": ((NUM_BLOCKS, 0),)}, rf"copies_out \(from\) holds {NUM_BLOCKS}"),
        ({"copies_out": ((0, 8),)}, r"copies_out \(to\) holds 8"),
        ({"copies_out": ((0, 1), (1, 2), (2, 1))}, "copies_out writes 1 twice"),
        ({"copies_in": ((-1, 0),)}, r"copies_in \(from\) holds -1"),
        ({"copies_in": ((0, NUM_BLOCKS),)}, rf"copies_in \(to\) holds {NUM_BLOCKS}"),
        ({"copies_in": ((0, 4), (1, 4))}, "copies_in writes 4 twice"),
    ],
)
def test_copies_that_reach_outside_or_meet_are_refused_and_none_is_made(
    make: Callable[..., Any], copies: dict[str, Any], message: str
) -> None:
    executor = after_prompts(make, "a")
    with pytest.raises(ValueError, match=message):
        executor.submit(decode("a", TABLES["a"], zero_blocks=(8, 2), **copies))
    np.testing.assert_array_equal(executor.logits(decode("a", TABLES["a"])), undisturbed(make, "a"))


@each_executor
def test_without_a_swap_space_no_copy_is_taken(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"holds 0, which is outside of \[0, 0\)"):
        make().submit(StepPlan(0, (), copies_out=((0, 0),)))


@each_executor
def test_a_block_shared_by_two_victims_is_copied_out_for_each(make: Callable[..., Any]) -> None:
    executor = after_prompts(make, "a")
    executor.submit(StepPlan(1, (), copies_out=((8, 0), (2, 1), (8, 2)), zero_blocks=(8, 2)))
    for first in (0, 2):
        back = decode("a", (5, 6), copies_in=((first, 5), (1, 6)))
        np.testing.assert_array_equal(executor.logits(back), undisturbed(make, "a"))


def ticking(*intervals: float) -> Iterator[float]:
    """Times of a timer that is asked twice for each interval, the last one for ever."""
    now = 0.0
    for interval in chain(intervals, repeat(intervals[-1])):
        yield now
        now += interval
        yield now


@each_executor
def test_the_time_of_a_copy_is_half_the_median_of_there_and_back(make: Callable[..., Any]) -> None:
    assert make(num_blocks=1).block_copy_s(ticking(1e-3, 3e-3, 2e-3, 1e-3, 2e-3).__next__) == 1e-3
    long = ticking(0.03, 1.0)
    assert make(num_blocks=1).block_copy_s(long.__next__) == 0.015
    assert next(long) == 0.03  # not run again, for one run took long enough
    assert make().block_copy_s() > 0.0


@each_executor
def test_timing_a_copy_disturbs_neither_cache_nor_swap_space(make: Callable[..., Any]) -> None:
    executor = make(num_swap_blocks=1)
    executor.submit(StepPlan(0, (chunk_of("a", PROMPTS["a"], (0, 2)),)))
    executor.submit(StepPlan(1, (), copies_out=((2, 0),), zero_blocks=(2,)))
    assert executor.block_copy_s() > 0.0
    back = decode("a", (0, 4), copies_in=((0, 4),))
    np.testing.assert_array_equal(executor.logits(back), undisturbed(make, "a"))
