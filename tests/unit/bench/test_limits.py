"""Rooflines, against sums made one token at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.limits import _seen, limits
from headway.models.spec import AttentionKind, DecoderSpec, Rope

FULL = AttentionKind(Rope((1.0,)))


@dataclass(frozen=True)
class Rates:
    read_bytes_per_s: float
    operations_per_s: dict[str, float]


SPEC = DecoderSpec(
    architecture="llama",
    attention=(FULL,) * 3,
    hidden_size=8,
    intermediate_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    vocab_size=100,
    max_position=64,
    rms_norm_eps=1e-5,
    attention_scale=1.0,
)
LAYERS = 3 * (8 * (8 + 4 + 4 + 8) + 3 * 8 * 16)
HEAD = 8 * 100
LOAD = {
    "kv_cache_dtype": "float32",
    "num_prompts": 5,
    "width": 2,
    "budget": 16,
    "input_len": 10,
    "output_len": 4,
}


@settings(deadline=None)
@given(
    st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=4),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_tokens_that_are_attended_to(windows: list[int | None], begin: int, count: int) -> None:
    kinds = tuple(AttentionKind(Rope((1.0,)), window) for window in windows)
    spec = replace(SPEC, attention=kinds)
    expected = sum(
        min(position + 1, window or 1000)
        for window in windows
        for position in range(begin, begin + count)
    )
    assert _seen(spec, begin, begin + count) == pytest.approx(expected / len(windows))


def test_with_endless_arithmetic_weights_and_kv_are_read_in_every_step() -> None:
    rates = Rates(1000.0, {"float32": 1e30, "bfloat16": 1e30})
    found = limits(SPEC, rates, dtype="bfloat16", **LOAD)
    assert found is not None
    weights = 2 * (LAYERS + HEAD)
    assert found.prefill_s == pytest.approx(4 * weights / 1000)  # 50 tokens in steps of 16
    kv = 5 * (11 + 12 + 13) * (2 * 3 * 2 * 2) * 4
    assert found.decode_s == pytest.approx((3 * 3 * weights + kv) / 1000)  # 3 rounds of 2, 2, 1
    assert found.total_s == found.prefill_s + found.decode_s


def test_with_endless_memory_products_and_attention_bind() -> None:
    rates = Rates(1e30, {"int8": 4000.0, "float32": 1000.0})
    found = limits(SPEC, rates, dtype="int8", **LOAD)
    assert found is not None
    attention = 4 * 3 * 8 * 55
    assert found.prefill_s == pytest.approx(
        5 * (10 * 2 * LAYERS + 2 * HEAD) / 4000 + 5 * attention / 1000
    )
    attention = 4 * 3 * 8 * (11 + 12 + 13)
    assert found.decode_s == pytest.approx(
        5 * 3 * 2 * (LAYERS + HEAD) / 4000 + 5 * attention / 1000
    )


def test_a_dtype_that_has_no_product_has_no_limit() -> None:
    assert limits(SPEC, Rates(1.0, {"float32": 1.0}), dtype="int8", **LOAD) is None
    assert limits(SPEC, Rates(1.0, {"int8": 1.0}), dtype="int8", **LOAD) is None
