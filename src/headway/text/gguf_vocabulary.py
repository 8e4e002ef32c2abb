"""The tokenizer that a GGUF file's `tokenizer.ggml.*` fields describe.

Ids are llama.cpp's, whose converters write those fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer

from headway.errors import ModelError, UnsupportedModel
from headway.text.byte_level import (
    PRE_TOKENIZERS,
    PreTokenizing,
    byte_level_backend,
    byte_level_bytes,
)
from headway.text.sentencepiece import (
    byte_of,
    byte_tokens,
    sentencepiece_backend,
    sentencepiece_bytes,
)
from headway.text.vocabulary import Vocabulary, backend_failures, begin_with

__all__ = ["read_gguf_vocabulary"]

T = TypeVar("T")

# `tokenizer.ggml.token_type`
_UNDEFINED, _NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(7)
_TEXT = (_UNDEFINED, _NORMAL, _UNUSED)

_LONGEST_TOKEN = 1000
"""Characters. Finding the merges of a token takes the square of its length."""

_NO = {
    "add_eos_token": "an end after every prompt is not supported",
    "add_sep_token": "a separator after every prompt is not supported",
    "remove_extra_whitespaces": "dropping spaces of the prompt is not supported",
}
"""Flags that may be there and must be false."""

_END_MARKS = frozenset(
    (
        *("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
    )
)
"""Marks that end a generation, whichever of them the file names; some files call them
user-defined."""


def read_gguf_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Builds what `tokenizer.ggml.*` describe.

    Raises:
        ModelError: a field is missing, mistyped or contradicts another.
        UnsupportedModel: the kind of tokenizer or its pre-tokenizer is not known here.
    """
    fields = _Fields(metadata)
    model = fields.value("model", str)
    if model not in ("gpt2", "llama"):
        raise fields.unsupported(
            "model",
            f"is {model!r:.80}; those that work: 'gpt2' (byte-level BPE), 'llama' "
            "(SentencePiece BPE)",
        )
    for flag, problem in _NO.items():
        if fields.value(flag, bool, False):
            raise fields.unsupported(flag, problem)
    return _byte_level(fields) if model == "gpt2" else _sentencepiece(fields)


class _Fields:
    """Typed look-ups among the `tokenizer.ggml.*` fields."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def error(self, name: str, problem: str) -> ModelError:
        return ModelError(f"tokenizer.ggml.{name}: {problem}")

    def unsupported(self, name: str, problem: str) -> UnsupportedModel:
        return UnsupportedModel(f"tokenizer.ggml.{name}: {problem}")

    def value(self, name: str, kind: type[T], default: T | None = None) -> T:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if value is None:
            raise self.error(name, "is missing from the metadata")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(name, f"must be {kind.__name__}, not {value!r:.80}")
        return value

    def array(
        self, name: str, kind: type[T], default: tuple[T, ...] | None = None
    ) -> tuple[T, ...]:
        values = self.value(name, tuple, default)
        for index, item in enumerate(values):
            if not isinstance(item, kind):
                raise self.error(name, f"item {index} must be {kind.__name__}, not {item!r:.80}")
        return values

    def tokens(self) -> tuple[str, ...]:
        """Each once, but for empty ones, which are gaps."""
        tokens = self.array("tokens", str)
        if (longest := max(map(len, tokens), default=0)) > _LONGEST_TOKEN:
            raise self.error("tokens", f"one has {longest} characters; at most {_LONGEST_TOKEN}")
        if len(set(tokens)) < len(tokens):
            first: dict[str, int] = {}
            for index, token in enumerate(tokens):
                if token and first.setdefault(token, index) != index:
                    raise self.error("tokens", f"{token!r:.80} is item {first[token]} and {index}")
        return tokens

    def types(self, num_tokens: int) -> tuple[int, ...]:
        types = self.array("token_type", int, (_NORMAL,) * num_tokens)
        self._check_length("token_type", "types", types, num_tokens)
        for kind in set(types):
            if not 0 <= kind <= _BYTE:
                raise self.error("token_type", f"holds {kind}; 0 to {_BYTE} are known")
        return types

    def scores(self, num_tokens: int) -> tuple[float, ...]:
        scores = self.array("scores", float)
        self._check_length("scores", "scores", scores, num_tokens)
        if not all(map(math.isfinite, scores)):
            raise self.error("scores", "must be finite")
        return scores

    def token_id(self, name: str, vocab_size: int) -> int | None:
        if f"tokenizer.ggml.{name}" not in self._metadata:
            return None
        token = self.value(name, int)
        if not 0 <= token < vocab_size:
            raise self.error(name, f"{token} is outside the vocabulary (0 to {vocab_size - 1})")
        return token

    def _check_length(
        self, name: str, items: str, values: tuple[object, ...], num_tokens: int
    ) -> None:
        if len(values) != num_tokens:
            raise self.error(name, f"holds {len(values)} {items} for {num_tokens} tokens")


def _byte_level(fields: _Fields) -> Vocabulary:
    pre = _pre_tokenizing(fields)
    tokens = fields.tokens()
    types = fields.types(len(tokens))
    merges = fields.array("merges", str)
    with backend_failures("tokenizer.ggml.merges do not fit the tokens"):
        backend = byte_level_backend(tokens, merges, pre)
    token_bytes = [
        byte_level_bytes(token) if kind in _TEXT else _own_bytes(token, kind)
        for token, kind in zip(tokens, types, strict=True)
    ]
    return _vocabulary(fields, backend, tokens, types, token_bytes, add_bos=pre.add_bos)


def _pre_tokenizing(fields: _Fields) -> PreTokenizing:
    name = fields.value("pre", str, "default")
    if name not in PRE_TOKENIZERS:
        raise fields.unsupported(
            "pre", f"is {name!r:.80}; those that work: {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _sentencepiece(fields: _Fields) -> Vocabulary:
    tokens = fields.tokens()
    types = fields.types(len(tokens))
    scores = fields.scores(len(tokens))
    unknown = _unknown_token(fields, tokens, types)
    add_space_prefix = fields.value("add_space_prefix", bool, True)
    with backend_failures("tokenizer.ggml.tokens"):
        backend = sentencepiece_backend(
            tokens,
            [index for index, kind in enumerate(types) if kind in _TEXT],
            scores,
            unknown=unknown,
            add_space_prefix=add_space_prefix,
        )
    token_bytes = [
        sentencepiece_bytes(token) if kind in _TEXT else _own_bytes(token, kind)
        for token, kind in zip(tokens, types, strict=True)
    ]
    return _vocabulary(fields, backend, tokens, types, token_bytes, add_bos=True)


def _unknown_token(fields: _Fields, tokens: Sequence[str], types: Sequence[int]) -> str | None:
    """What text becomes for which there are no tokens; None where every byte has one."""
    known = set(tokens)
    lacking = next((token for token in byte_tokens() if token not in known), None)
    if lacking is None:
        return None
    if _UNKNOWN in types:
        return tokens[types.index(_UNKNOWN)]
    raise fields.error("tokens", f"{lacking} is missing, and there is no unknown token")


def _own_bytes(token: str, kind: int) -> bytes:
    """Of a token that is no text: a byte, or a mark that stands for itself."""
    byte = byte_of(token) if kind == _BYTE else None
    return token.encode() if byte is None else byte


def _vocabulary(
    fields: _Fields,
    backend: BackendTokenizer,
    tokens: Sequence[str],
    types: Sequence[int],
    token_bytes: Sequence[bytes],
    *,
    add_bos: bool,
) -> Vocabulary:
    """What all kinds have in common: marks within the text, the beginning, the ends."""
    marks = [
        AddedToken(token, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]
    with backend_failures("tokenizer.ggml.tokens"):
        backend.add_special_tokens(marks)
    bos = fields.token_id("bos_token_id", len(tokens))
    if fields.value("add_bos_token", bool, add_bos):
        if bos is None:
            raise fields.error("bos_token_id", "is missing, and add_bos_token asks for it")
        begin_with(backend, bos)
    return Vocabulary(
        backend=backend,
        token_bytes=token_bytes,
        size=len(tokens),
        special=frozenset(
            index
            for index, kind in enumerate(types)
            if kind in (_UNKNOWN, _CONTROL) or _is_end(tokens[index], kind)
        ),
        bos_token_id=bos,
        eos_token_ids=_ends(fields, tokens, types),
    )


def _ends(fields: _Fields, tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    named = [
        fields.token_id(name, len(tokens))
        for name in ("eos_token_id", "eot_token_id", "eom_token_id")
    ]
    known = [index for index, kind in enumerate(types) if _is_end(tokens[index], kind)]
    return tuple(dict.fromkeys([*(end for end in named if end is not None), *known]))


def _is_end(token: str, kind: int) -> bool:
    return kind in (_CONTROL, _USER_DEFINED) and token in _END_MARKS
