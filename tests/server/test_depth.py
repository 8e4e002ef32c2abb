"""How deep a body is nested, whatever its strings hold and wherever it is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.server.api import body
from headway.server.api.body import MAX_DEPTH, is_too_deep

TEXTS = st.text(st.sampled_from('[]{}"\\a\n'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(1, 9), st.integers(0, 8))
def test_brackets_count_outside_strings_alone(value: Any, piece: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "_PIECE_BYTES", piece)
        patch.setattr(body, "MAX_DEPTH", most)
        assert is_too_deep(json.dumps(value).encode()) == (depth(value) > most)


@pytest.mark.parametrize(
    "text", ["[" * 2**18, '"' * 2**18, "\\" * (2**18 + 1), '\\"[' * 2**16, "\n[" * 2**17]
)
def test_text_of_many_pieces_is_no_nesting(text: str) -> None:
    nested: Any = text
    for _ in range(MAX_DEPTH):
        nested = [nested, "[" * 65]
    assert not is_too_deep(json.dumps(nested).encode())
    assert is_too_deep(json.dumps([nested]).encode())
