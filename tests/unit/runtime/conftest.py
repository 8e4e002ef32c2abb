"""Tiny models gain nothing from threads, and lose much where others use the cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tiny_executors import one_thread


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
