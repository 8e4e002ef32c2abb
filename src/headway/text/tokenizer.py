"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from headway.errors import InvalidRequest, ModelError, RequestTooLarge
from headway.text.gguf_vocabulary import read_gguf_vocabulary
from headway.text.hf_vocabulary import read_hf_vocabulary
from headway.text.token_length import TokenLength
from headway.text.vocabulary import Vocabulary, backend_failures

__all__ = ["Tokenizer"]


class Tokenizer:
    """Token ids of one model. Immutable, so any number of threads may share it.

    Where a model puts a space before a text (SentencePiece's prefix), `decode` and
    `token_bytes` keep it: " Hello" comes back for "Hello". A stream of output tokens begins
    in the middle of a text, and its first space is the model's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._backend = vocabulary.backend
        self._bytes = vocabulary.token_bytes
        self._special = vocabulary.special
        self.vocab_size = vocabulary.size
        """Ids are from 0 to this; those without a token, which a model may have to pad its
        vocabulary, decode to nothing."""
        self.bos_token_id = vocabulary.bos_token_id
        """Beginning of sequence; None where the model has none."""
        self.eos_token_ids = vocabulary.eos_token_ids
        """Tokens that end a generation: end of sequence, of turn, of message; the first is
        the model's end of sequence where it has one."""

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Builds the tokenizer that a GGUF file's `tokenizer.ggml.*` fields describe.

        Raises:
            ModelError: a field is missing, mistyped or contradicts another.
            UnsupportedModel: the kind of tokenizer or its pre-tokenizer is not known here.
        """
        return cls(read_gguf_vocabulary(metadata))

    @classmethod
    def from_directory(cls, path: Path, *, vocab_size: int | None = None) -> Tokenizer:
        """Builds the tokenizer of a Hugging Face model directory.

        Args:
            path: holds `tokenizer.json`, and beside it, where they are needed,
                `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`.
            vocab_size: ids that the model has; None for those of the tokenizer.

        Raises:
            ModelNotFound: there is no `tokenizer.json`.
            ModelError: a file cannot be read, or a field is mistyped or contradicts another.
            UnsupportedModel: the kind of tokenizer is not known here.
        """
        return cls(read_hf_vocabulary(path, vocab_size or 0))

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.token_text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self.token_text(self.eos_token_ids[0]) if self.eos_token_ids else None

    def encode(
        self, text: str, *, add_special_tokens: bool = True, at_most: int | None = None
    ) -> list[int]:
        """Token ids of `text`; the texts of special tokens within it become those tokens.

        With `add_special_tokens` it begins with the BOS token where the model wants one. Does not
        hold the interpreter's lock, so other threads go on.

        Raises `InvalidRequest` for text that is no valid Unicode (lone surrogates), or that the
        model has no tokens for, and `RequestTooLarge`, before any work, for text that cannot come
        to `at_most` tokens.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                "prompt",
                f"character {error.start} ({text[error.start]!r}) is half of a surrogate pair",
            ) from error
        if at_most is not None and self._token_length is not None:
            fewest = self._token_length.fewest_tokens(data)
            if fewest > at_most:
                raise RequestTooLarge(
                    "prompt",
                    f"{len(data):,} bytes of text come to at least {fewest:,} tokens, which is "
                    f"more than max_model_len ({at_most:,})",
                )
        try:
            with backend_failures("cannot be encoded"):
                # Of one text `encode` makes the same, with the interpreter's lock held.
                [encoding] = self._backend.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )
                return encoding.ids
        except ModelError as error:
            raise InvalidRequest("prompt", str(error)) from error

    @cached_property
    def _token_length(self) -> TokenLength | None:
        return TokenLength.of(self._backend, self._bytes)

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
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def token_text(self, token_id: int) -> str:
        """The token as text; bytes that are no UTF-8 on their own become U+FFFD.

        Raises `ValueError` for an id outside the vocabulary.
        """
        return self.token_bytes(token_id).decode(errors="replace")

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Of all tokens that are marks for the model."""
        return tuple(self.token_text(token) for token in sorted(self._special))

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark for the model, no text for a reader.

        Raises `ValueError` for an id outside the vocabulary.
        """
        self._check(token_id)
        return token_id in self._special

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(
                f"token id {token_id} is outside the vocabulary (0 to {self.vocab_size - 1})"
            )
