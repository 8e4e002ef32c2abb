"""Made-up text: tokens that follow from a key, drawn when somebody wants them.

A load may have millions of tokens, so a request keeps what its prompt is made of, not the tokens.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random

__all__ = ["Text"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a prompt. Of two with the same key and ids, the shorter begins the longer; with
    different keys they have nothing to do with each other."""

    key: str
    len: int
    """Tokens."""
    ids: range
    """What it is made of, all equally likely."""

    @property
    def token_ids(self) -> list[int]:
        """Drawn anew each time."""
        words = struct.unpack(f"<{self.len}I", Random(self.key).randbytes(4 * self.len))
        first, count = self.ids.start, len(self.ids)
        return [first + (word * count >> 32) for word in words]
