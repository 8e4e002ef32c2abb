"""Hugging Face directories that are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import InvalidRequest
from headway.text.tokenizer import Tokenizer
from unit.text.hf_tokenizers import (
    NAMES,
    NUM_BYTES,
    beginning,
    byte_level,
    load,
    mark,
    sentencepiece,
    write,
)


def test_byte_level_tokens_stand_for_their_bytes_and_added_ones_for_their_text(
    tmp_path: Path,
) -> None:
    tokenizer = load(tmp_path, byte_level(), tokenizer_config=NAMES)
    text = "ab é\n日</s><tool:é>"
    ids = tokenizer.encode(text)
    assert ids[0] == NUM_BYTES
    assert ids[-2:] == [NUM_BYTES + 2, NUM_BYTES + 3]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids) == "ab é\n日<tool:é>"
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_sentencepiece_tokens_give_spaces_and_bytes_and_keep_the_first_space(
    tmp_path: Path,
) -> None:
    tokenizer = load(tmp_path, sentencepiece(), tokenizer_config=NAMES)
    ids = tokenizer.encode("ab a\n日")
    assert ids[0] == 1
    assert tokenizer.decode(ids) == " ab a\n日"
    assert tokenizer.token_bytes(3 + 0x0A) == b"\n"
    assert tokenizer.token_bytes(264) == b" <t>"


def test_a_special_token_stands_for_its_text_as_it_is(tmp_path: Path) -> None:
    marked = sentencepiece()
    marked["added_tokens"].append(mark(265, "<|end▁of▁turn|>"))
    tokenizer = load(tmp_path, marked)
    assert tokenizer.token_text(265) == "<|end▁of▁turn|>"
    assert tokenizer.encode(tokenizer.token_text(265), add_special_tokens=False) == [265]


@pytest.mark.parametrize(
    ("config", "older"),
    [
        (NAMES, {}),
        ({name: {"content": text, "lstrip": False} for name, text in NAMES.items()}, {}),
        ({"bos_token": "<s>"}, {"bos_token": "</s>", "eos_token": {"content": "</s>"}}),
        ({}, NAMES),
    ],
)
def test_beginning_and_end_are_named_by_text_or_object_in_either_file(
    tmp_path: Path, config: object, older: object
) -> None:
    tokenizer = load(tmp_path, byte_level(), tokenizer_config=config, special_tokens_map=older)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (NUM_BYTES + 1, (NUM_BYTES + 2,))


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level())
    assert (tokenizer.bos_token, tokenizer.eos_token_ids) == (None, ())
    assert tokenizer.encode("ab") == [NUM_BYTES]


def test_only_tokenizer_json_says_what_goes_before_a_prompt(tmp_path: Path) -> None:
    flags = {**NAMES, "add_bos_token": True}
    assert load(tmp_path, byte_level(), tokenizer_config=flags).encode("ab") == [NUM_BYTES]
    processed = byte_level(post_processor=beginning("<s>", NUM_BYTES + 1))
    tokenizer = load(tmp_path, processed, tokenizer_config={**NAMES, "add_bos_token": False})
    assert tokenizer.encode("ab") == [NUM_BYTES + 1, NUM_BYTES]
    assert tokenizer.encode("ab", add_special_tokens=False) == [NUM_BYTES]


def test_ends_are_those_of_the_generation_config_too_and_else_of_the_models(
    tmp_path: Path,
) -> None:
    config = {"eos_token_id": 7}
    write(tmp_path, byte_level(), tokenizer_config=NAMES, config=config)
    assert Tokenizer.from_directory(tmp_path).eos_token_ids == (NUM_BYTES + 2, 7)
    write(tmp_path, byte_level(), generation_config={"eos_token_id": [5, NUM_BYTES + 2]})
    assert Tokenizer.from_directory(tmp_path).eos_token_ids == (NUM_BYTES + 2, 5)
    for silent in ({}, {"eos_token_id": None}, {"eos_token_id": []}):
        write(tmp_path, byte_level(), generation_config=silent)
        assert Tokenizer.from_directory(tmp_path).eos_token_ids == (NUM_BYTES + 2, 7)


def test_tokens_that_only_the_config_adds_are_added(tmp_path: Path) -> None:
    added = {str(NUM_BYTES + 4): {"content": "<x>", "special": True}}
    tokenizer = load(tmp_path, byte_level(), tokenizer_config={"added_tokens_decoder": added})
    assert tokenizer.encode("a<x>")[-1] == NUM_BYTES + 4
    assert tokenizer.is_special(NUM_BYTES + 4)


def test_a_named_token_is_a_mark_though_nothing_else_says_so(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level(), tokenizer_config={"eos_token": "ab"})
    assert tokenizer.is_special(NUM_BYTES)
    assert tokenizer.eos_token_ids == (NUM_BYTES,)


def test_ids_that_pad_the_models_vocabulary_decode_to_nothing(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    known = NUM_BYTES + 4
    assert Tokenizer.from_directory(tmp_path).vocab_size == known
    padded = Tokenizer.from_directory(tmp_path, vocab_size=known + 10)
    assert padded.vocab_size == known + 10
    assert padded.decode([0, known, known + 9]) == padded.decode([0])
    assert padded.token_bytes(known + 9) == b""
    assert not padded.is_special(known + 9)
    with pytest.raises(ValueError, match=f"token id {known + 10} is outside"):
        padded.token_bytes(known + 10)


def test_gaps_in_the_vocabulary_decode_to_nothing(tmp_path: Path) -> None:
    changed = byte_level(added_tokens=[])
    changed["model"]["vocab"]["ab"] = NUM_BYTES + 100
    tokenizer = load(tmp_path, changed)
    assert tokenizer.vocab_size == NUM_BYTES + 101
    assert tokenizer.decode([NUM_BYTES + 5, NUM_BYTES + 100]) == "ab"


def test_what_a_file_keeps_from_training_is_switched_off(tmp_path: Path) -> None:
    training = byte_level(
        truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 2**40},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        },
    )
    training["model"]["dropout"] = 0.9
    tokenizer = load(tmp_path, training)
    assert [tokenizer.encode("abab") for _ in range(20)] == [[NUM_BYTES] * 2] * 20


def test_text_that_the_model_has_no_tokens_for_is_an_invalid_request(tmp_path: Path) -> None:
    unigram = {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}
    tokenizer = load(
        tmp_path,
        byte_level(model=unigram, added_tokens=[], pre_tokenizer=None, post_processor=None),
    )
    assert tokenizer.encode("aa") == [0, 0]
    with pytest.raises(InvalidRequest, match="prompt: cannot be encoded"):
        tokenizer.encode("ab")
