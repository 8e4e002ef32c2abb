"""What the grammars here are put together from."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["ANYTHING", "HEADER", "SPACE", "escaped", "literal"]

HEADER = '%llguidance {"no_forcing": true}\n'
"""The mask is what the grammar allows, however that is cut into tokens."""

ANYTHING = r"/(.|\n)*/"
SPACE = r"/[ \n]*/"


def literal(text: str, special: Mapping[str, int]) -> str:
    """A rule's part that is this text alone; special tokens within it become those tokens."""
    if not text:
        return ""
    marks = "|".join(re.escape(mark) for mark in special if mark and mark in text)
    parts = re.split(f"({marks})", text) if marks else [text]
    return " ".join(
        f"<[{special[part]}]>" if part in special else f"/{escaped(part)}/"
        for part in parts
        if part
    )


def escaped(text: str) -> str:
    """A regular expression that matches this text alone, and can stand between slashes."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)
