"""The tokenizer of a Hugging Face model directory: `tokenizer.json` and the files beside it.

Ids are those of Transformers' `TokenizersBackend` (what `PreTrainedTokenizerFast` was):
`tokenizer.json` alone says how text is cut and what goes round a prompt (`add_bos_token` beside it
does not count, as in Transformers 5); `tokenizer_config.json` names the beginning and the end.
Truncation, padding and dropout, which a `tokenizer.json` may keep from training, are switched off.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer

from headway.errors import ModelError, ModelNotFound, UnsupportedModel
from headway.text.byte_level import byte_level_bytes
from headway.text.sentencepiece import SPACE, byte_of
from headway.text.vocabulary import Vocabulary, backend_failures

__all__ = ["read_hf_vocabulary"]

T = TypeVar("T")

_MAX_TOKENIZER_BYTES = 256 << 20
"""Of `tokenizer.json`; the largest there are, Gemma 3's, have 33 MB."""
_MAX_BYTES = 16 << 20
"""Of each of the others."""
_MOST_GROWTH = 64
_OTHER_FILES = ("tokenizer.model", "tekken.json", "vocab.json", "tokenizer_config.json")
_DECODERS = "ByteLevel, Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip"


class _Token(msgspec.Struct):
    """A token as an object, with how it is found in a text."""

    content: str
    id: int | None = None
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    def added(self) -> AddedToken:
        return AddedToken(
            self.content,
            single_word=self.single_word,
            lstrip=self.lstrip,
            rstrip=self.rstrip,
            normalized=self.normalized,
            special=self.special,
        )


class _Roles(msgspec.Struct):
    """Of `special_tokens_map.json`."""

    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None


class _Config(_Roles):
    """Of `tokenizer_config.json`."""

    added_tokens_decoder: dict[int, _Token] = {}


class _Generation(msgspec.Struct):
    """Of `generation_config.json` and `config.json`."""

    eos_token_id: int | list[int] | None = None


class _Step(msgspec.Struct):
    """Of a decoder."""

    type: str
    decoders: list[_Step] = []
    """Of a Sequence."""
    pattern: dict[str, str] = {}
    content: str = ""
    """Of a Replace, with `pattern`."""
    stop: int = 0
    """Of a Strip: how much goes at the end of the text."""
    replacement: str = SPACE
    """Of a Metaspace."""


class _Normalizer(msgspec.Struct):
    type: str
    normalizers: list[_Normalizer] = []
    """Of a Sequence."""
    content: str = ""
    """Of a Replace."""

    def growth(self) -> int:
        """By how much a Replace, or several in turn, may lengthen a text."""
        inner = math.prod(step.growth() for step in self.normalizers)
        return inner * (max(1, len(self.content)) if self.type == "Replace" else 1)


class _Model(msgspec.Struct):
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _TokenizerFile(msgspec.Struct):
    """What is needed of `tokenizer.json` beside the backend that is made of it."""

    model: _Model
    normalizer: _Normalizer | None = None
    decoder: _Step | None = None
    added_tokens: list[_Token] = []


def read_hf_vocabulary(directory: Path, num_ids: int = 0) -> Vocabulary:
    """Builds what the files of `directory` describe, for a model that has `num_ids` ids.

    Raises:
        ModelNotFound: there is no `tokenizer.json`.
        ModelError: a file cannot be read, or a field is mistyped or contradicts another.
        UnsupportedModel: the tokens are of a kind whose bytes are not known here.
    """
    file = directory / "tokenizer.json"
    source = _read(file, _MAX_TOKENIZER_BYTES)
    if source is None:
        raise _no_tokenizer(directory)
    described = _decoded(file, source, _TokenizerFile)
    backend = _backend(file, source, described)
    config = _config(directory)
    _add_tokens(directory, backend, config)
    bos, eos = (_token_id(directory, backend, config, role) for role in ("bos_token", "eos_token"))
    token_bytes = _token_bytes(file, backend, described, len(source))
    size = max(len(token_bytes), num_ids)
    _check_prompt_ends(file, backend, size)
    return Vocabulary(
        backend=backend,
        token_bytes=token_bytes,
        size=size,
        special=frozenset(
            index for index, token in backend.get_added_tokens_decoder().items() if token.special
        ),
        bos_token_id=bos,
        eos_token_ids=_ends(directory, eos, size),
    )


def _read(file: Path, most: int = _MAX_BYTES) -> bytes | None:
    """None where there is no such file. One of more than `most` bytes is not read."""
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            source = opened.read(size) if size <= most else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror or error}") from error
    if source is None:
        raise UnsupportedModel(f"{file}: is larger than {most} bytes")
    return source


def _decoded(file: Path, source: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(source, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{file}: {error}") from error


def _read_optional(file: Path, kind: type[T]) -> T:
    """What `kind` says by default where there is no such file."""
    source = _read(file)
    return kind() if source is None else _decoded(file, source, kind)


def _no_tokenizer(directory: Path) -> ModelError:
    found = [name for name in _OTHER_FILES if (directory / name).exists()]
    if not found:
        return ModelNotFound(f"{directory}: there is no tokenizer.json")
    return UnsupportedModel(
        f"{directory}: there is {found[0]} and no tokenizer.json; Transformers makes one: "
        f"AutoTokenizer.from_pretrained(path).save_pretrained(path)"
    )


def _config(directory: Path) -> _Config:
    """Of `tokenizer_config.json`, with the names that only the older file has."""
    config = _read_optional(directory / "tokenizer_config.json", _Config)
    older = _read_optional(directory / "special_tokens_map.json", _Roles)
    for role in older.__struct_fields__:
        if getattr(config, role) is None:
            setattr(config, role, getattr(older, role))
    return config


def _backend(file: Path, source: bytes, described: _TokenizerFile) -> BackendTokenizer:
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(described.model, affix):
            raise UnsupportedModel(f"{file}: model.{affix}: is not supported")
    # A prompt that grows without bound would end the process: the backend cannot fail to allocate.
    if described.normalizer is not None and described.normalizer.growth() > _MOST_GROWTH:
        raise UnsupportedModel(
            f"{file}: normalizer: replaces a character by more than {_MOST_GROWTH}"
        )
    with backend_failures(f"{file}"):
        backend = BackendTokenizer.from_buffer(source)
        backend.no_truncation()
        backend.no_padding()
        if described.model.dropout:
            backend.model.dropout = None
    for token in described.added_tokens:  # the backend numbers them anew and says nothing
        got = backend.token_to_id(token.content)
        if token.id != got:
            raise ModelError(
                f"{file}: added_tokens: {token.content!r:.80} has id {token.id}, and {got} "
                f"follows from what is before it"
            )
    return backend


def _add_tokens(directory: Path, backend: BackendTokenizer, config: _Config) -> None:
    """Adds what only `tokenizer_config.json` has, and makes marks of the tokens it names."""
    for index, token in sorted(config.added_tokens_decoder.items()):
        if backend.token_to_id(token.content) is None:
            backend.add_tokens([token.added()])
            got = backend.token_to_id(token.content)
            if got != index:
                raise ModelError(
                    f"{directory / 'tokenizer_config.json'}: added_tokens_decoder.{index}: "
                    f"{token.content!r:.80} is not in tokenizer.json, where it would get id {got}"
                )
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for role in _Roles.__struct_fields__:
        text = _text(config, role)
        if text and text not in added and backend.token_to_id(text) is not None:
            backend.add_special_tokens([AddedToken(text, normalized=False)])


def _text(config: _Config, role: str) -> str | None:
    token: str | _Token | None = getattr(config, role)
    return token.content if isinstance(token, _Token) else token


def _token_id(directory: Path, backend: BackendTokenizer, config: _Config, role: str) -> int | None:
    text = _text(config, role)
    if text is None:
        return None
    token = backend.token_to_id(text)
    if token is None:
        raise ModelError(
            f"{directory / 'tokenizer_config.json'}: {role}: {text!r:.80} is no token of "
            f"tokenizer.json"
        )
    return token


def _token_bytes(
    file: Path, backend: BackendTokenizer, described: _TokenizerFile, num_bytes: int
) -> list[bytes]:
    """By id. `num_bytes` is the file's size, which bounds the ids that it can number."""
    vocab = backend.get_vocab(with_added_tokens=True)
    last = max(vocab.values(), default=-1)
    if not 0 <= last < num_bytes:
        raise ModelError(f"{file}: model.vocab: has ids up to {last} in {num_bytes} bytes")
    added = backend.get_added_tokens_decoder()
    to_bytes = _decoding(file, described.decoder, {token.content for token in added.values()})
    token_bytes: list[bytes | None] = [None] * (last + 1)
    for token, index in vocab.items():
        if token_bytes[index] is not None:
            raise ModelError(f"{file}: model.vocab: {token!r:.80} has id {index}, as another has")
        is_mark = index in added and added[index].special
        token_bytes[index] = token.encode() if is_mark else to_bytes(token)
    return [stands_for or b"" for stands_for in token_bytes]


def _decoding(file: Path, decoder: _Step | None, added: set[str]) -> Callable[[str], bytes]:
    """From the text of a token to what it stands for, as `decoder` says.

    Only what is done to each token by itself counts. What a decoder does to the whole text,
    dropping the space that was put before it, is left out: a stream begins anywhere.
    """
    if decoder is None:
        raise _unsupported(file, "missing")
    steps = decoder.decoders if decoder.type == "Sequence" else [decoder]
    kinds = [step.type for step in steps]
    if kinds == ["ByteLevel"]:
        return lambda token: token.encode() if token in added else byte_level_bytes(token)
    replacements: dict[str, str] = {}
    for index, step in enumerate(steps):
        match step:
            case _Step(type="Metaspace"):
                replacements[step.replacement] = " "
            # One that lengthens could make gigabytes of a small file.
            case _Step(type="Replace", pattern={"String": literal}) if literal and len(
                step.content
            ) <= len(literal):
                replacements[literal] = step.content
            case _Step(type="Strip", stop=0) if "Fuse" in kinds[:index]:
                pass
            case _Step(type="ByteFallback" | "Fuse"):
                pass
            case _:
                raise _unsupported(file, f"{step.type!r:.80} at {index}")
    return lambda token: _piece_bytes(token, replacements, "ByteFallback" in kinds)


def _unsupported(file: Path, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{file}: decoder: is {what}; those that work: {_DECODERS}")


def _piece_bytes(token: str, replacements: Mapping[str, str], byte_fallback: bool) -> bytes:
    if byte_fallback and (byte := byte_of(token)) is not None:
        return byte
    for old, new in replacements.items():
        token = token.replace(old, new)
    return token.encode()


def _check_prompt_ends(file: Path, backend: BackendTokenizer, size: int) -> None:
    """A post-processor may name ids at will."""
    with backend_failures(f"{file}: post_processor"):
        ids = backend.encode("").ids
    if max(ids, default=0) >= size:
        raise ModelError(f"{file}: post_processor: {max(ids)} is no token id")


def _ends(directory: Path, eos: int | None, size: int) -> tuple[int, ...]:
    """The tokenizer's end, and those of `generation_config.json`, else of `config.json`."""
    ends = [] if eos is None else [eos]
    for name in ("generation_config.json", "config.json"):
        stated = _read_optional(directory / name, _Generation).eos_token_id
        more = [stated] if isinstance(stated, int) else stated
        if not more:
            continue
        for end in more:
            if not 0 <= end < size:
                raise ModelError(f"{directory / name}: eos_token_id: {end} is no token id")
        return tuple(dict.fromkeys([*ends, *more]))
    return tuple(ends)
