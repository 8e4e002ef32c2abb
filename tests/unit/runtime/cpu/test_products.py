"""The kernels' products by themselves: exact where they promise it, and the same in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.runtime import kernels

if kernels.why_missing() is not None:
    pytest.skip(f"no kernels: {kernels.why_missing()}", allow_module_level=True)

from headway.runtime.cpu.probe import expected_product, rotated

ISAS = kernels.native.isas()
PRECISIONS = ("float32", "bfloat16", "int8")
WIDTHS = (16, 48, 64, 144, 576, 1536)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 17, 64, 97, 255)
Array = NDArray[np.float32]

each_isa = pytest.mark.parametrize("isa", ISAS)
each_precision = pytest.mark.parametrize("precision", PRECISIONS)


class Product:
    def __init__(self, weights: Array, *, precision: str, isa: str = ISAS[0]) -> None:
        self._num_channels = len(weights)
        self._product: Any = kernels.native.Product(isa=isa, precision=precision, weights=weights)

    def __call__(self, rows: Array, num_threads: int = 1) -> Array:
        out = np.full((len(rows), self._num_channels), np.float32(7.0))
        self._product.multiply(rows, out, num_threads)
        return out


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def integers(kind: str, *shape: int) -> NDArray[np.int64]:
    """In [-127, 127], each row with one of the two ends."""
    rng = np.random.default_rng([*kind.encode(), *shape])
    values = {
        "largest": lambda: np.full(shape, 127),
        "least": lambda: np.full(shape, -127),
        "ends": lambda: rng.choice([-127, 127], shape),
        "any": lambda: rng.integers(-127, 128, shape),
        "zeros": lambda: np.zeros(shape, np.int64),
    }[kind]()
    values[:, 0] = (
        rng.choice([-127, 127], len(values)) if kind in ("any", "zeros") else values[:, 0]
    )
    return values


def bits(values: Array) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def to_bfloat16(values: Array) -> NDArray[np.float64]:
    """Rounded to the nearest, ties to even."""
    word = values.view(np.uint32)
    word = (word + 0x7FFF + (word >> 16 & 1)) & 0xFFFF0000
    return word.astype(np.uint32).view(np.float32).astype(np.float64)


@each_isa
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("weights_kind", ["largest", "least", "ends", "any"])
@pytest.mark.parametrize("rows_kind", ["largest", "least", "ends", "any", "zeros"])
def test_sums_of_int8_products_are_the_integers(
    isa: str, width: int, weights_kind: str, rows_kind: str
) -> None:
    weights, rows = integers(weights_kind, 50, width), integers(rows_kind, 7, width)
    product = Product(rotated(weights), precision="int8", isa=isa)
    np.testing.assert_array_equal(
        bits(product(rotated(rows))), bits(expected_product(rows, weights))
    )


def test_one_off_by_one_is_noticed() -> None:
    """What is expected above is as sharp as it seems."""
    weights, rows = integers("any", 20, 64), integers("any", 3, 64)
    other = rows.copy()
    other[1, 5] -= np.sign(other[1, 5])
    differs = expected_product(rows, weights) != expected_product(other, weights)
    assert differs[1].sum() >= 18
    assert not differs[[0, 2]].any()


@each_isa
@each_precision
@pytest.mark.parametrize("num_channels", [1, 15, 16, 17, 47, 64, 100])
def test_products_are_those_of_float64(isa: str, precision: str, num_channels: int) -> None:
    rows, weights = normal(9, 208), normal(num_channels, 208, seed=1)
    found = Product(weights, precision=precision, isa=isa)(rows)
    a, b = rows.astype(np.float64), weights.astype(np.float64)
    if precision == "bfloat16":
        a, b = to_bfloat16(rows), to_bfloat16(weights)
    spread = np.sqrt(208)  # of an element
    off = np.abs(found - a @ b.T) / spread
    # A rounding to 1 in 127 of the largest of 208, that is of about 3, in either factor.
    assert off.max() < {"float32": 1e-5, "bfloat16": 1e-5, "int8": 0.06}[precision]
    if precision == "int8":
        assert np.sqrt(np.mean(off**2)) < 0.015


@each_isa
@each_precision
@pytest.mark.parametrize("num_channels", [33, 150])
def test_a_row_is_the_same_whatever_rows_and_threads_there_are(
    isa: str, precision: str, num_channels: int
) -> None:
    product = Product(normal(num_channels, 144, seed=1), precision=precision, isa=isa)
    rows = normal(max(COUNTS), 144)
    alone = np.concatenate([product(row[None]) for row in rows])
    for count in COUNTS:
        for num_threads in (1, 2, 3):
            found = product(rows[-count:], num_threads)
            np.testing.assert_array_equal(bits(found), bits(alone[-count:]))


@settings(deadline=None, max_examples=40)
@given(
    width=st.integers(1, 20),
    num_channels=st.integers(1, 70),
    num_rows=st.integers(1, 40),
    precision=st.sampled_from(PRECISIONS),
    isa=st.sampled_from(ISAS),
    num_threads=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_an_element_depends_on_its_row_and_channel_alone(
    width: int,
    num_channels: int,
    num_rows: int,
    precision: str,
    isa: str,
    num_threads: int,
    seed: int,
) -> None:
    rows, weights = normal(num_rows, 16 * width, seed=seed), normal(num_channels, 16 * width)
    found = Product(weights, precision=precision, isa=isa)(rows, num_threads)
    row, channel = seed % num_rows, seed % num_channels
    alone = Product(weights[channel : channel + 1], precision=precision, isa=isa)(rows[row][None])
    assert bits(found[row, channel]) == bits(alone[0, 0])


@each_isa
@each_precision
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(isa: str, precision: str, poison: float) -> None:
    product = Product(normal(40, 64, seed=1), precision=precision, isa=isa)
    rows = normal(9, 64)
    healthy = product(rows)
    rows[4, 10] = poison
    found = product(rows)
    assert not np.isfinite(found[4]).any()
    others = np.arange(9) != 4
    np.testing.assert_array_equal(bits(found[others]), bits(healthy[others]))


@each_isa
@each_precision
def test_a_row_of_zeros_gives_zeros(isa: str, precision: str) -> None:
    product = Product(normal(40, 64, seed=1), precision=precision, isa=isa)
    rows = normal(3, 64)
    rows[1] = 0.0
    assert not product(rows)[1].any()
    assert not Product(np.zeros((20, 64), np.float32), precision=precision, isa=isa)(rows).any()


@each_isa
def test_every_isa_has_the_same_int8_sums(isa: str) -> None:
    """And, where nothing is rounded on the way to int8, the same products."""
    weights, rows = rotated(integers("any", 30, 48)), rotated(integers("any", 8, 48))
    found, best = (Product(weights, precision="int8", isa=one)(rows) for one in (isa, ISAS[0]))
    np.testing.assert_array_equal(bits(found), bits(best))


def test_a_width_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(ValueError, match="the width is no multiple of 16"):
        Product(normal(4, 20), precision="int8")
    with pytest.raises(ValueError, match="rows: has 30 elements"):
        Product(normal(4, 16), precision="int8")(normal(2, 15))
