"""BPE as SentencePiece does it (Kudo and Richardson 2018): scores in place of merges, `▁` for a
space, and a token for every byte that has no other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer, Prepend, Replace
from tokenizers.normalizers import Sequence as InSequence

__all__ = ["SPACE", "byte_of", "byte_tokens", "sentencepiece_backend", "sentencepiece_bytes"]

SPACE = "▁"
"""U+2581, what a space is written as within a token."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_tokens() -> list[str]:
    """The texts of the 256 tokens that stand for single bytes."""
    return [f"<0x{byte:02X}>" for byte in range(256)]


def byte_of(token: str) -> bytes | None:
    """The byte that `<0xNN>` stands for; None for any other text."""
    match = _BYTE_TOKEN.fullmatch(token)
    return None if match is None else bytes([int(match[1], 16)])


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a token that is text."""
    return token.replace(SPACE, " ").encode()


def sentencepiece_backend(
    tokens: Sequence[str],
    mergeable: Iterable[int],
    scores: Sequence[float],
    *,
    unknown: str | None,
    add_space_prefix: bool,
) -> BackendTokenizer:
    """A backend that merges, again and again, the neighbours whose join has the highest score.

    Args:
        tokens: by id, each once.
        mergeable: ids of the tokens that are text: merges make them, and only of each other.
        scores: by id, finite.
        unknown: what a character becomes that neither is a token nor has its bytes among them.
        add_space_prefix: a text begins with a space, and so does one after a special token.

    What the backend finds wrong comes as an `Exception`.
    """
    vocab = {token: index for index, token in enumerate(tokens)}
    best_first = sorted(mergeable, key=lambda index: -scores[index])
    merges = _merges([tokens[index] for index in best_first])
    # The whole text is one word, so a cache of words would only fill up.
    model = BPE(
        vocab, merges, cache_capacity=0, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = BackendTokenizer(model)
    steps: list[Normalizer] = [Replace(" ", SPACE)]
    if add_space_prefix:
        steps.insert(0, Prepend(SPACE))
    backend.normalizer = InSequence(steps)
    return backend


def _merges(texts: list[str]) -> list[tuple[str, str]]:
    """All ways to make one of `texts` of two others, in the order of what is made.

    Every way counts, not only the one by which the token was learnt: a text may offer any.
    This is most of the time that a large vocabulary takes to load, hence one flat loop.
    """
    known = set(texts)
    return [
        (left, right)
        for text in texts
        for cut in range(1, len(text))
        if (left := text[:cut]) in known and (right := text[cut:]) in known
    ]
