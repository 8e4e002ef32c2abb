from __future__ import annotations

import pytest

from headway.cli.tables import count, size, table


@pytest.mark.parametrize(
    ("number", "shown"), [(7, "7"), (35_136, "35.1K"), (134_515_008, "134.5M"), (8 * 10**9, "8.0B")]
)
def test_parameters_are_counted_in_three_digits_or_so(number: int, shown: str) -> None:
    assert count(number) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (999, "999 B"),
        (46_080, "46.1 kB"),
        (98_362_432, "98.4 MB"),
        (1_500_000_000_000, "1,500.0 GB"),
    ],
)
def test_sizes_are_in_powers_of_ten(num_bytes: int, shown: str) -> None:
    assert size(num_bytes) == shown


def test_columns_align_and_a_short_row_bends_no_column() -> None:
    rows = [("name", "n", "note"), ("a", "100", "x"), ("longer", "a text that needs its room")]
    assert table(rows, left=(0, 2)) == [
        "name      n  note",
        "a       100  x",
        "longer  a text that needs its room",
    ]
