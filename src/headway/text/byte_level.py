"""Byte-level BPE (GPT-2, Radford et al. 2019): printable stand-ins for bytes, and the ways to
cut text into words before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InSequence

__all__ = [
    "PRE_TOKENIZERS",
    "PreTokenizing",
    "byte_level_alphabet",
    "byte_level_backend",
    "byte_level_bytes",
]


@dataclass(frozen=True, slots=True)
class PreTokenizing:
    """How text is cut into pieces that BPE then works on one by one."""

    patterns: tuple[str, ...]
    """Each cuts the pieces of the one before it into matches and what lies between them."""
    whole_words: bool = False
    """A piece that is a token itself is taken as one, whatever the merges say."""
    add_bos: bool = False
    """What holds where the file does not say."""


_GPT2_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # Radford 2019
)
# The patterns of the models' own tokenizer.json or tekken.json.
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_THE_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = rf"{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_THE_REST}"
_QWEN2_WORDS = rf"{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_THE_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_THE_REST}"
)

_LLAMA3 = PreTokenizing((_LLAMA3_WORDS,), whole_words=True, add_bos=True)
_QWEN2 = PreTokenizing((_QWEN2_WORDS,))

PRE_TOKENIZERS: dict[str, PreTokenizing] = {
    "gpt-2": PreTokenizing((_GPT2_WORDS,)),
    "smollm": PreTokenizing((r"\p{N}", _GPT2_WORDS)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": PreTokenizing((_LLAMA3_WORDS,)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": PreTokenizing((_TEKKEN_WORDS,), whole_words=True, add_bos=True),
    "default": PreTokenizing((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
}
"""By the name that a GGUF file gives it in `tokenizer.ggml.pre`."""


def byte_level_backend(
    tokens: Sequence[str], merges: Sequence[str], pre: PreTokenizing
) -> BackendTokenizer:
    """Of `tokens` by id and `merges`, the best first, each two tokens with a space between.

    What the backend finds wrong comes as an `Exception`.
    """
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = BackendTokenizer(BPE(vocab, pairs, ignore_merges=pre.whole_words))
    steps: list[PreTokenizer] = [Split(Regex(p), "isolated") for p in pre.patterns]
    backend.pre_tokenizer = InSequence([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])
    return backend


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins: Latin-1's printable bytes stand for themselves, the
    others, in order, are the characters from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


byte_level_alphabet = _byte_of_character()
"""By the stand-in, the byte."""


def byte_level_bytes(token: str) -> bytes:
    """The bytes whose stand-ins `token` is; its own text where it is no such thing."""
    try:
        return bytes([byte_level_alphabet[character] for character in token])
    except KeyError:
        return token.encode()
