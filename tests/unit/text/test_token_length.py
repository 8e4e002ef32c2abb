"""How much text a token can stand for: never less than it does, or nothing is said."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import RequestTooLarge
from headway.text.byte_level import PRE_TOKENIZERS
from headway.text.tokenizer import Tokenizer
from unit.text.hf_tokenizers import byte_level, load, mark, sentencepiece
from unit.text.test_tokenizer_sentencepiece import tokenizer as sentencepiece_tokenizer
from unit.text.vocabulary import BOS, TOKENS, USER, small_tokenizer
from waiting import IN_TIME_S

SPLITS = {
    "gpt-2 without bytes": small_tokenizer(
        tokens=tuple("" if text in ("Ą", "ñ") else text for text in TOKENS)
    ),
    **{pre: small_tokenizer(pre=pre) for pre in PRE_TOKENIZERS},
    "sentencepiece": sentencepiece_tokenizer(),
}
TEXTS = st.text() | st.lists(
    st.sampled_from([BOS, USER, "hello", " hello", "12", "é", "\x04", "\n\n", "  "])
).map("".join)


def knows(tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.encode("a" * 10_000, at_most=1)
    except RequestTooLarge:
        return True
    return False


@pytest.mark.parametrize("name", SPLITS)
def test_a_text_that_fits_is_never_refused(name: str) -> None:
    tokenizer = SPLITS[name]
    assert knows(tokenizer)

    @settings(deadline=None, max_examples=50)
    @given(TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.encode(text, at_most=len(ids)) == ids

    check()


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    tokenizer = small_tokenizer()  # whose longest token has 7 bytes
    assert tokenizer.encode("hello" * 14, at_most=10)
    with pytest.raises(RequestTooLarge, match=r"71 bytes of text come to at least 11 tokens.*10"):
        tokenizer.encode("x" * 71, at_most=10)


BEGINNING, END, TOOL = (mark(257 + i, text) for i, text in enumerate(("<s>", "</s>", "<t>")))


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"added_tokens": [BEGINNING, END, TOOL]}, True),
        ({"added_tokens": [BEGINNING, END, {**TOOL, "lstrip": True}]}, False),
        ({"added_tokens": [BEGINNING, END, {**TOOL, "rstrip": True}]}, False),
        ({"normalizer": {"type": "NFC"}}, True),
        ({"normalizer": {"type": "Prepend", "prepend": " "}}, True),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}}, True),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ""}}, False),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}}, False),
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, False),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}, False),
    ],
)
def test_what_may_shorten_a_text_counts(
    tmp_path: Path, changes: dict[str, object], known: bool
) -> None:
    assert knows(load(tmp_path, byte_level(**changes))) is known


def test_of_unknown_characters_any_number_may_be_one_token(tmp_path: Path) -> None:
    whole = sentencepiece()
    assert knows(load(tmp_path, whole))
    whole["model"]["vocab"] = {
        "X" if text == "<0x41>" else text: index for text, index in whole["model"]["vocab"].items()
    }
    assert not knows(load(tmp_path, whole))


def test_a_text_that_its_normalizer_shortens_fits(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level(normalizer={"type": "NFC"}))
    text = "\u212b" * 1000  # three bytes each, of which two are left
    assert tokenizer.encode(text, at_most=2000)


def test_encoding_leaves_the_interpreter_to_others() -> None:
    tokenizer, count = small_tokenizer(), 0
    going, done = threading.Event(), threading.Event()

    def others() -> None:
        nonlocal count
        while not done.is_set():
            count += 1
            going.set()
            time.sleep(0)  # gives the lock up

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert going.wait(IN_TIME_S)
        sys.setswitchinterval(100)  # from here on nobody takes the lock who is not given it
        before = count

        def went_on() -> bool:
            tokenizer.encode("hello, you there! " * 5_000)
            return count > before + 2

        # Others need a processor too, which may be busy elsewhere: they get it sooner or later.
        # In between nothing gives up the lock that the encoding does not.
        assert any(went_on() for _ in range(500))
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()
