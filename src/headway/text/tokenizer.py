"""Text to token ids and back: a byte-level BPE tokenizer built from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InSequence

from headway.errors import InvalidRequest, ModelError, UnsupportedModel

__all__ = ["Tokenizer"]

T = TypeVar("T")

# `tokenizer.ggml.token_type`
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_GPT2_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # Radford 2019
)
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut into pieces that BPE then works on one by one."""

    patterns: tuple[str, ...]
    """Each cuts the pieces of the one before it into matches and what lies between them."""
    whole_words: bool = False
    """A piece that is a token itself is taken as one, whatever the merges say."""
    add_bos: bool = False
    """What holds where the file does not say."""


_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer((_GPT2_WORDS,)),
    "smollm": _PreTokenizer((r"\p{N}", _GPT2_WORDS)),
    "llama-bpe": _PreTokenizer((_LLAMA3_WORDS,), whole_words=True, add_bos=True),
    "default": _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
}


class Tokenizer:
    """Token ids of one model. Immutable, so any number of threads may share it."""

    def __init__(
        self,
        backend: BackendTokenizer,
        tokens: Sequence[str],
        token_bytes: Sequence[bytes],
        special: frozenset[int],
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        add_bos: bool,
    ) -> None:
        self._backend = backend
        self._tokens = tokens
        self._bytes = token_bytes
        self._special = special
        self._prefix = [bos_token_id] if add_bos and bos_token_id is not None else []
        self.bos_token_id = bos_token_id
        """Beginning of sequence; None where the model has none."""
        self.eos_token_ids = eos_token_ids
        """Tokens that end a generation: end of sequence, of turn, of message; the first is
        the model's end of sequence where it has one."""

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Builds the tokenizer that the `tokenizer.ggml.*` fields describe.

        Raises:
            ModelError: a field is missing, mistyped or contradicts another.
            UnsupportedModel: the kind of tokenizer or its pre-tokenizer is not known here.
        """
        fields = _Fields(metadata)
        pre = _pre_tokenizer(fields)
        tokens = fields.array("tokens", str)
        types = fields.array("token_type", int, (_NORMAL,) * len(tokens))
        if len(types) != len(tokens):
            raise fields.error("token_type", f"holds {len(types)} types for {len(tokens)} tokens")
        bos = fields.token_id("bos_token_id", len(tokens))
        add_bos = fields.value("add_bos_token", bool, pre.add_bos)
        if add_bos and bos is None:
            raise fields.error("bos_token_id", "is missing, and add_bos_token asks for it")
        ends = [
            fields.token_id(name, len(tokens))
            for name in ("eos_token_id", "eot_token_id", "eom_token_id")
        ]
        return cls(
            _backend(tokens, types, fields.array("merges", str), pre),
            tokens,
            [_bytes_of(*token) for token in zip(tokens, types, strict=True)],
            frozenset(i for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)),
            bos_token_id=bos,
            eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
            add_bos=add_bos,
        )

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self._tokens[self.bos_token_id]

    @property
    def eos_token(self) -> str | None:
        return self._tokens[self.eos_token_ids[0]] if self.eos_token_ids else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; the texts of control tokens within it become those tokens.

        With `add_special_tokens` it begins with the BOS token where the model wants one.
        Raises `InvalidRequest` for text that is no valid Unicode (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                "prompt",
                f"character {error.start} ({text[error.start]!r}) is half of a surrogate pair",
            ) from error
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return self._prefix + ids if add_special_tokens else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD.

        Raises `ValueError` for an id outside the vocabulary.
        """
        return b"".join(
            self.token_bytes(token)
            for token in ids
            if not (skip_special_tokens and self.is_special(token))
        ).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for; of a special token, its text's.

        Raises `ValueError` for an id outside the vocabulary.
        """
        self._check(token_id)
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """The token as text; bytes that are no UTF-8 on their own become U+FFFD.

        Raises `ValueError` for an id outside the vocabulary.
        """
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark for the model, no text for a reader.

        Raises `ValueError` for an id outside the vocabulary.
        """
        self._check(token_id)
        return token_id in self._special

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < len(self._tokens):
            raise ValueError(
                f"token id {token_id} is outside the vocabulary (0 to {len(self._tokens) - 1})"
            )


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

    def token_id(self, name: str, vocab_size: int) -> int | None:
        if f"tokenizer.ggml.{name}" not in self._metadata:
            return None
        token = self.value(name, int)
        if not 0 <= token < vocab_size:
            raise self.error(name, f"{token} is outside the vocabulary (0 to {vocab_size - 1})")
        return token


def _pre_tokenizer(fields: _Fields) -> _PreTokenizer:
    """Also refuses what this version does not do."""
    model = fields.value("model", str)
    if model != "gpt2":
        raise fields.unsupported("model", f"is {model!r}; 'gpt2' (byte-level BPE) works")
    if fields.value("add_eos_token", bool, False):
        raise fields.unsupported("add_eos_token", "an end after every prompt is not supported")
    name = fields.value("pre", str, "default")
    if name not in _PRE_TOKENIZERS:
        raise fields.unsupported(
            "pre", f"is {name!r}; those that work: {', '.join(_PRE_TOKENIZERS)}"
        )
    return _PRE_TOKENIZERS[name]


def _backend(
    tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], pre: _PreTokenizer
) -> BackendTokenizer:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        model = BPE(vocab, pairs, ignore_merges=pre.whole_words)
    except Exception as error:  # the backend knows no narrower kind
        raise ModelError(f"tokenizer.ggml.merges do not fit the tokens: {error}") from error
    backend = BackendTokenizer(model)
    steps: list[PreTokenizer] = [Split(Regex(p), "isolated") for p in pre.patterns]
    backend.pre_tokenizer = InSequence([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED) and token
        ]
    )
    return backend


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins: Latin-1's printable bytes stand for themselves, the
    others, in order, are the characters from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_of_character()


def _bytes_of(token: str, kind: int) -> bytes:
    if kind == _NORMAL:
        try:
            return bytes([_BYTE_OF_CHARACTER[character] for character in token])
        except KeyError:
            pass  # no byte-level token after all: its text as it stands
    return token.encode()
