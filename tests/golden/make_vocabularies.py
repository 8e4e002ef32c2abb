"""Makes the two small vocabularies of the golden tests from Headway's own text.

    pip install sentencepiece==0.2.3
    PYTHONPATH=src:tests python tests/golden/make_vocabularies.py

`sentencepiece_vocabulary.json` is such as Llama 2's, learnt by SentencePiece itself. The merges
of `byte_level_vocabulary.json` are learnt without cutting lines into words, so that tokens
reach over every boundary and it shows wherever one pre-tokenizer cuts and another does not.

The golden ids were made with the files as they are; they need not be made again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from golden.make_tokenizer_ids import BYTE_LEVEL, CORPUS, SENTENCEPIECE

ROOT = Path(__file__).parents[2]
SIZE = 2000
CONTROL = ["[INST]", "[/INST]"]
USER_DEFINED = ["<b>", "</b>", "\t", "[TOOL]"]


def sentences() -> Iterator[str]:
    for pattern in ("docs/**/*.md", "src/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield from path.read_text().splitlines()
    for text in CORPUS.values():
        yield from [text[:500]] * 20


def byte_level() -> dict[str, list[object]]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=8,
        show_progress=False,
    )
    backend.train_from_iterator(sentences(), trainer)
    return {"merges": [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]}


def sentencepiece() -> dict[str, list[object]]:
    import sentencepiece as library  # noqa: PLC0415

    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=sentences(),
        model_writer=model,
        model_type="bpe",
        vocab_size=SIZE,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_by_whitespace=False,
        max_sentence_length=100_000,
        control_symbols=CONTROL,
        user_defined_symbols=USER_DEFINED,
    )
    pieces = library.SentencePieceProcessor(model_proto=model.getvalue())

    def kind(token: int) -> int:
        if pieces.id_to_piece(token) in USER_DEFINED:
            return 4
        for value, holds in ((2, pieces.is_unknown), (3, pieces.is_control), (6, pieces.is_byte)):
            if holds(token):
                return value
        return 1

    return {
        "tokens": [pieces.id_to_piece(token) for token in range(SIZE)],
        "scores": [int(pieces.get_score(token)) for token in range(SIZE)],
        "token_type": [kind(token) for token in range(SIZE)],
    }


def write(path: Path, fields: dict[str, list[object]]) -> None:
    """A field a line."""
    lines = ",\n".join(
        f'"{name}": {json.dumps(values, ensure_ascii=False, separators=(",", ":"))}'
        for name, values in fields.items()
    )
    path.write_text(f"{{{lines}}}\n")


if __name__ == "__main__":
    write(BYTE_LEVEL, byte_level())
    write(SENTENCEPIECE, sentencepiece())
