"""Texts in pieces, as they come from a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from headway.text.parts import CallStart, Part

__all__ = ["pieces", "texts_of"]


def pieces(text: str, cuts: Sequence[int]) -> Iterator[str]:
    """The text, cut in these places; some pieces may be empty."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    yield ""
    for begin, end in pairwise(places):
        yield text[begin:end]


def texts_of(parts: Sequence[Part]) -> list[str]:
    return [part.name if isinstance(part, CallStart) else part.text for part in parts]
