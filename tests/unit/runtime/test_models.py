"""Every kind of decoder on every executor: any plans come to the same logits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.plan import StepPlan
from headway.models.spec import AttentionKind, DecoderSpec, DecoderWeights
from headway.runtime.torch import batch
from tiny import TINY
from tiny_executors import WEIGHTS, each_executor, each_model, pytorch, reference
from tiny_plans import chunk_of, random_plans, whole


def random_sequences(rng: random.Random) -> list[list[int]]:
    stem = [rng.randrange(TINY.vocab_size) for _ in range(rng.randrange(20))]
    return [
        stem[: rng.randrange(len(stem) + 1)]
        + [rng.randrange(TINY.vocab_size) for _ in range(rng.randrange(1, 45))]
        for _ in range(rng.randrange(1, 5))
    ]


@each_model
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_torch_logits_are_those_of_the_reference_whatever_the_plans(
    spec: DecoderSpec, seed: int
) -> None:
    rng = random.Random(seed)
    expected, actual = reference(spec), pytorch(spec)
    for plan in random_plans(rng, random_sequences(rng)):
        np.testing.assert_allclose(actual.logits(plan), expected.logits(plan), atol=1e-3)


@each_model
@each_executor
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_chunks_blocks_and_batches_leave_the_logits_what_they_are_alone(
    make: Callable[..., Any], spec: DecoderSpec, seed: int
) -> None:
    rng = random.Random(seed)
    sequences = random_sequences(rng)
    executor, alone = make(spec), make(spec)
    last = {}
    for plan in random_plans(rng, sequences):
        for chunk, row in zip(plan.chunks, executor.logits(plan), strict=True):
            last[chunk.request_id] = row
    for i, tokens in enumerate(sequences):
        np.testing.assert_allclose(last[str(i)], alone.logits(whole(tokens))[0], atol=1e-4)


@each_model
@each_executor
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_greedy_tokens_are_those_of_a_sequence_alone(
    make: Callable[..., Any], spec: DecoderSpec, seed: int
) -> None:
    rng = random.Random(seed)
    sequences = random_sequences(rng)
    executor, alone = make(spec), make(spec)
    sampled: dict[str, int | None] = {}
    for plan in random_plans(rng, sequences):
        result = executor.collect(executor.submit(plan))
        assert not result.errors
        sampled.update(zip((c.request_id for c in plan.chunks), result.token_ids, strict=True))
    for i, tokens in enumerate(sequences):
        best, second = np.sort(alone.logits(whole(tokens))[0])[[-1, -2]]
        if best - second > 1e-4:
            assert sampled[str(i)] == alone.submit(whole(tokens)).token_ids[0]


def with_a_feature_less(spec: DecoderSpec) -> Iterator[tuple[str, DecoderSpec, DecoderWeights]]:
    weights = WEIGHTS[spec.architecture]
    kinds, rope = spec.attention, spec.attention[0].rope
    flat = tuple(AttentionKind(replace(kind.rope, magnitude=1.0), kind.window) for kind in kinds)
    for field, poorer in {
        "window": {"attention": tuple(AttentionKind(kind.rope) for kind in kinds)},
        "rope": {"attention": tuple(AttentionKind(rope, kind.window) for kind in kinds)},
        "magnitude": {"attention": flat},
        "attention_scale": {"attention_scale": spec.head_dim**-0.5},
        "embedding_scale": {"embedding_scale": 1.0},
        "activation": {"activation": "silu"},
    }.items():
        if replace(spec, **poorer) != spec:
            yield field, replace(spec, **poorer), weights
    for field, value in asdict(weights.layers[0]).items():
        if value is not None and ("bias" in field or "post_norm" in field or field[1:] == "_norm"):
            layers = tuple(replace(layer, **{field: None}) for layer in weights.layers)
            yield field, spec, replace(weights, layers=layers)
    if weights.head is not weights.embedding:
        yield "head", spec, replace(weights, head=weights.embedding)


@each_model
def test_no_feature_of_the_tiny_models_could_be_left_out_unseen(spec: DecoderSpec) -> None:
    tokens = [(i * 37) % spec.vocab_size for i in range(60)]
    (rich,) = reference(spec).logits(whole(tokens))
    for feature, poorer, weights in with_a_feature_less(spec):
        (row,) = reference(poorer, weights).logits(whole(tokens))
        assert np.abs(row - rich).max() > 0.05, feature


LOCAL = replace(TINY, attention=(AttentionKind(TINY.attention[0].rope, window=6),) * 2)
REACH = 2 * (6 - 1) + 1
"""Tokens that the last one's logits depend on, through both layers."""


@each_executor
@pytest.mark.parametrize("chunk", [1, 7, 300], ids=["token by token", "chunks", "whole"])
def test_a_token_sees_what_its_windows_reach_and_nothing_before(
    make: Callable[..., Any], chunk: int
) -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, TINY.vocab_size, 300)

    def last_row(first: int, change: int) -> Any:
        """With the tokens up to position `first` changed."""
        own = (tokens + change * (np.arange(300) <= first)) % TINY.vocab_size
        executor, table = make(LOCAL, WEIGHTS["llama"]), tuple(range(75))
        for start in range(0, 300, chunk):
            part = chunk_of("a", own[start : start + chunk].tolist(), table, start=start)
            (row,) = executor.logits(StepPlan(step=start, chunks=(part,)))
        return row

    unchanged = last_row(0, 0)
    behind, within = 300 - REACH - 1, 300 - REACH
    np.testing.assert_allclose(last_row(behind, 1), unchanged, atol=1e-5)
    assert np.abs(last_row(within, 1) - unchanged).max() > 1e-3


@each_model
@pytest.mark.parametrize("seed", range(4))
def test_cutting_a_chunk_at_its_windows_changes_nothing(
    spec: DecoderSpec, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_MIN_PIECE", 5)
    rng = random.Random(seed)
    expected, actual = reference(spec), pytorch(spec)
    for plan in random_plans(rng, random_sequences(rng)):
        np.testing.assert_allclose(actual.logits(plan), expected.logits(plan), atol=1e-3)
