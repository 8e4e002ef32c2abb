"""How much text a token can stand for, so that a text can be known to be too long without being
tokenised."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from headway.text.byte_level import byte_level_alphabet
from headway.text.sentencepiece import byte_tokens

__all__ = ["TokenLength"]

_NFC_SHRINKS = 4
"""Composing takes at most three bytes to one (U+212B and U+212A, which take three, to Å and K)."""


@dataclass(frozen=True, slots=True)
class TokenLength:
    """How much of a text one token can take."""

    max_bytes: int
    dropped: bytes
    """Bytes without a token: of those any number comes to nothing."""

    @classmethod
    def of(cls, backend: BackendTokenizer, token_bytes: Sequence[bytes]) -> TokenLength | None:
        """None where there is no telling: this backend drops text in other ways, or takes any
        amount of it as one token."""
        shrinks = _normalizer_shrinks(_described(backend.normalizer))
        if shrinks is None or not _keeps_all(_described(backend.pre_tokenizer)):
            return None
        dropped = _dropped(backend)
        if dropped is None:
            return None
        added = backend.get_added_tokens_decoder().values()
        if any(token.lstrip or token.rstrip for token in added):  # takes the spaces beside it too
            return None
        return cls(shrinks * max(map(len, token_bytes), default=1), dropped)

    def fewest_tokens(self, text: bytes) -> int:
        """That a text (UTF-8) can come to."""
        return -(-len(text.translate(None, self.dropped)) // self.max_bytes)


def _described(part: object) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer as `tokenizer.json` would have it."""
    if part is None:
        return None
    described = json.loads(part.__getstate__())  # type: ignore[arg-type]
    assert isinstance(described, dict)
    return described


def _normalizer_shrinks(step: Mapping[str, Any] | None) -> int | None:
    """By how much it may shorten a text at most; None: by any amount."""
    match step:
        case None | {"type": "Prepend"}:
            return 1
        case {"type": "NFC"}:
            return _NFC_SHRINKS
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if new:
            return max(1, -(-len(old.encode()) // len(new.encode())))
        case {"type": "Sequence", "normalizers": list(steps)}:
            shrinks = 1
            for inner in steps:
                by = _normalizer_shrinks(inner)
                if by is None:
                    return None
                shrinks *= by
            return shrinks
    return None


def _keeps_all(step: Mapping[str, Any] | None) -> bool:
    match step:
        case None | {"type": "ByteLevel" | "Metaspace" | "Digits"}:
            return True
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            return all(_keeps_all(inner) for inner in steps)
    return False


def _dropped(backend: BackendTokenizer) -> bytes | None:
    """Bytes that come to no token, or any number of them to one; None: whole characters do."""
    if getattr(backend.model, "byte_fallback", False):
        complete = all(backend.token_to_id(name) is not None for name in byte_tokens())
        return b"" if complete else None
    return bytes(
        byte for name, byte in byte_level_alphabet.items() if backend.token_to_id(name) is None
    )
