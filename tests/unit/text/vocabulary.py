"""A small byte-level vocabulary: all bytes, a few merges, marks of a chat."""

from __future__ import annotations

from tokenizers.pre_tokenizers import ByteLevel

from headway.text.tokenizer import Tokenizer

ALPHABET = sorted(ByteLevel.alphabet())
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ã ©")
BOS, EOS, EOT, UNKNOWN, USER = "<s>", "</s>", "<|eot|>", "<unk>", "<tool>"

TOKENS = (*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), BOS, EOS, EOT, UNKNOWN, USER)
TYPES = (*(1 for _ in ALPHABET), *(1 for _ in MERGES), 3, 3, 3, 2, 4)


def token(text: str) -> int:
    """Id of the token with that text in the vocabulary."""
    return TOKENS.index(text)


def metadata(**changes: object) -> dict[str, object]:
    """`tokenizer.ggml.*` fields, with changes; None removes one."""
    fields: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": TOKENS,
        "token_type": TYPES,
        "merges": MERGES,
        "bos_token_id": token(BOS),
        "eos_token_id": token(EOS),
        "add_bos_token": False,
        **changes,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in fields.items() if v is not None}


def small_tokenizer(**changes: object) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(**changes))
