"""Small Hugging Face directories: a byte-level `tokenizer.json` and one such as Llama 2's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.text.sentencepiece import byte_tokens
from headway.text.tokenizer import Tokenizer
from unit.text.vocabulary import ALPHABET

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
NUM_BYTES = len(ALPHABET)


def mark(index: int, content: str, special: bool = True, **flags: object) -> dict[str, object]:
    """Of `added_tokens`."""
    finding = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": content, "special": special, **finding, **flags}


def byte_level(**changes: object) -> dict[str, Any]:
    """A `tokenizer.json` of single bytes, "ab", and marks from `NUM_BYTES + 1` on."""
    vocab = {character: index for index, character in enumerate(ALPHABET)} | {"ab": NUM_BYTES}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            mark(NUM_BYTES + 1, "<s>"),
            mark(NUM_BYTES + 2, "</s>"),
            mark(NUM_BYTES + 3, "<tool:é>", special=False),
        ],
        "normalizer": None,
        "pre_tokenizer": {**BYTE_LEVEL, "use_regex": False},
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
        **changes,
    }


def sentencepiece(**changes: object) -> dict[str, Any]:
    """A `tokenizer.json` such as Llama 2's."""
    pieces = ["<unk>", "<s>", "</s>", *byte_tokens(), "▁", "a", "b", "▁a", "▁ab", "▁<t>"]
    return byte_level(
        added_tokens=[mark(0, "<unk>"), mark(1, "<s>"), mark(2, "</s>"), mark(264, "▁<t>", False)],
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        pre_tokenizer=None,
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        post_processor=beginning("<s>", 1),
        model={
            "type": "BPE",
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [["▁", "a"], ["▁a", "b"]],
            "byte_fallback": True,
            "unk_token": "<unk>",
        },
        **changes,
    )


def beginning(name: str, *ids: int, known: bool = True) -> dict[str, Any]:
    """A post-processor that puts the token before a text."""
    token = {"SpecialToken": {"id": name, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {name: {"id": name, "ids": list(ids), "tokens": [name] * len(ids)}}
    return {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [text],
        "special_tokens": special if known else {},
    }


NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def write(directory: Path, tokenizer: object, **others: object) -> Path:
    """Files by name without suffix; a `str` is written as it is."""
    for name, content in {"tokenizer": tokenizer, **others}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / f"{name}.json").write_text(text)
    return directory


def load(directory: Path, tokenizer: object, **others: object) -> Tokenizer:
    return Tokenizer.from_directory(write(directory, tokenizer, **others))
