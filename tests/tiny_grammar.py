"""A vocabulary for the tiny models, small enough that masks can be found by trying every token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.models import WordLevel

from headway.core.structured import StructuredOutputs
from headway.grammar.compiler import CompiledGrammar, GrammarCompiler
from headway.text.tokenizer import Tokenizer
from headway.text.vocabulary import Vocabulary
from tiny import TINY

__all__ = [
    "END",
    "TOKENS",
    "allowed",
    "as_tokens",
    "by_trying",
    "compiled",
    "compiler",
    "tiny_tokenizer",
    "tiny_vocabulary",
]

_PIECES = ('{"', '":', '",', "ab", "ba", "true", "fals", "\n ", "é", "1.", "", "a")
TOKENS: tuple[bytes, ...] = (
    *(character.encode() for character in '{}[]":,. \n-/0123456789abcdefghlrstu'),
    *(piece.encode() for piece in _PIECES),
    b"\xc3",
    b"\xa9",
)
"""By id: characters, pieces of several, a gap, one that is there twice, halves of a character."""
TOKENS = (*TOKENS, *(b"z%d" % index for index in range(TINY.vocab_size - 2 - len(TOKENS))))
TOKENS = (*TOKENS, b"ab", b"<end>")
END = len(TOKENS) - 1
"""Both of the last two are marks for the model: their texts are not text."""


def tiny_vocabulary(*, has_end: bool = True) -> Vocabulary:
    assert len(TOKENS) == TINY.vocab_size
    return Vocabulary(
        backend=BackendTokenizer(WordLevel({}, unk_token="")),
        token_bytes=TOKENS,
        size=len(TOKENS),
        special=frozenset({END - 1, END}),
        bos_token_id=None,
        eos_token_ids=(END,) if has_end else (),
    )


@cache
def tiny_tokenizer(*, has_end: bool = True) -> Tokenizer:
    return Tokenizer(tiny_vocabulary(has_end=has_end))


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tiny_tokenizer())


def compiled(**asked: Any) -> CompiledGrammar:
    return compiler().compile(StructuredOutputs(**asked))


def allowed(words: bytes) -> set[int]:
    bits = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def by_trying(language: Iterable[str], output_ids: Sequence[int]) -> set[int]:
    """What may follow an output, where it is to become one of these texts."""
    begun = b"".join(TOKENS[token] for token in output_ids)
    texts = {text.encode() for text in language}
    rests = [text[len(begun) :] for text in texts if text.startswith(begun)]
    following = {
        token
        for token, piece in enumerate(TOKENS[: END - 1])
        if piece and any(rest.startswith(piece) for rest in rests)
    }
    return following | ({END} if begun in texts else set())


def as_tokens(text: str) -> tuple[int, ...]:
    """One way to cut a text, the longest tokens first."""
    rest, tokens = text.encode(), list[int]()
    while rest:
        fits = [t for t, piece in enumerate(TOKENS[: END - 1]) if piece and rest.startswith(piece)]
        tokens.append(max(fits, key=lambda token: len(TOKENS[token])))
        rest = rest[len(TOKENS[tokens[-1]]) :]
    return tuple(tokens)
