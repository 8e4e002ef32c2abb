"""What every kind of tokenizer file is read into, and how failures of the backend are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.processors import TemplateProcessing

from headway.errors import ModelError

__all__ = ["Vocabulary", "backend_failures", "begin_with"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of one model, and the backend that cuts text into them."""

    backend: BackendTokenizer
    """From text to ids; its post-processor adds what belongs round a prompt (BOS)."""
    token_bytes: Sequence[bytes]
    """By id: what the token stands for; of a special token its text; of a gap nothing."""
    size: int
    """Ids from 0 that the model may sample: at least all tokens. Models pad their vocabulary."""
    special: frozenset[int]
    """Marks for the model, no text for a reader."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """The model's end of sequence first, where it has one; then what else ends an output."""


@contextmanager
def backend_failures(what: str) -> Iterator[None]:
    """Turns what the backend raises within into a `ModelError` that begins with `what`.

    The backend raises plain `Exception`s, and its panics are `BaseException`s of a class
    that cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{what}: {error!s:.500}") from error


def begin_with(backend: BackendTokenizer, bos: int) -> None:
    """Makes `backend` put this token before every text that it encodes."""
    # Its name in the template is ours: a token's own text may not be writable in one.
    backend.post_processor = TemplateProcessing(
        single=["bos", "$A"], special_tokens=[{"id": "bos", "ids": [bos], "tokens": ["bos"]}]
    )
