from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.text.detokenizer import IncrementalDetokenizer
from unit.text.vocabulary import BOS, EOS, USER, small_tokenizer, token


class Pieces:
    """A tokenizer whose token `i` is the i-th piece of an output."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


def stream(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[list[str], str | None]:
    """What is given out for each piece and at the end, and the stop string."""
    detokenizer = IncrementalDetokenizer(Pieces(pieces), stop)
    texts = [detokenizer.feed([index]) for index in range(len(pieces))]
    return [*texts, detokenizer.flush()], detokenizer.stopped


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def stopped_text(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The plain definition, on the whole text."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


CUTS = st.lists(st.integers(0, 200))
ANY_BYTES = st.lists(
    st.one_of(st.binary(max_size=6), st.text(max_size=4).map(str.encode), st.just("🙂é".encode()))
).map(b"".join)
FEW_LETTERS = st.text("ab€\ufffd", max_size=40)
STOPS = st.lists(st.text("ab€\ufffd", min_size=1, max_size=5), max_size=4)


@given(ANY_BYTES, CUTS)
def test_the_pieces_joined_are_the_decoded_whole(data: bytes, cuts: list[int]) -> None:
    texts, stopped = stream(cut(data, cuts))
    assert "".join(texts) == data.decode(errors="replace")
    assert stopped is None


@given(FEW_LETTERS, STOPS, CUTS)
def test_a_stop_string_ends_the_text_as_on_the_whole_of_it(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    texts, stopped = stream(cut(text.encode(), cuts), stop)
    assert ("".join(texts), stopped) == stopped_text(text, stop)


@given(st.lists(st.sampled_from([b"a", b"b", b"\xe2", b"\x82", b"\xac"]), max_size=40), STOPS)
def test_stop_strings_hold_for_bytes_that_are_no_utf8(pieces: list[bytes], stop: list[str]) -> None:
    texts, stopped = stream(pieces, stop)
    assert ("".join(texts), stopped) == stopped_text(
        b"".join(pieces).decode(errors="replace"), stop
    )


@given(FEW_LETTERS, STOPS, CUTS)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    pieces = cut(text.encode(), cuts)
    texts, _ = stream(pieces, stop)
    for count in range(len(pieces) + 1):
        seen = b"".join(pieces[:count]).decode(errors="ignore")
        plain, stopped = stopped_text(seen, stop)
        if stopped is None:
            beginnings = (s[:n] for s in stop for n in range(1, len(s)))
            held = max((len(b) for b in beginnings if seen.endswith(b)), default=0)
            plain = seen[: len(seen) - held]
        assert "".join(texts[:count]) == plain


def test_a_character_is_given_out_whole() -> None:
    assert stream([b"x\xf0", b"\x9f", b"\x99", b"\x82y"]) == (["x", "", "", "🙂y", ""], None)


def test_half_a_character_at_the_end_is_a_replacement_character() -> None:
    assert stream([b"x\xf0\x9f"]) == (["x", "\ufffd"], None)


def test_a_stop_string_is_held_back_across_tokens() -> None:
    assert stream([b"one EN", b"D", b" two"], ["END"]) == (["one ", "", "", ""], "END")


def test_what_was_held_back_comes_when_it_is_no_stop_string() -> None:
    assert stream([b"EN", b"TER"], ["END"]) == (["", "ENTER", ""], None)


def test_what_is_held_back_comes_at_the_end() -> None:
    assert stream([b"the EN"], ["END"]) == (["the ", "EN"], None)


def test_a_stop_string_may_begin_within_a_token_and_end_within_a_character() -> None:
    assert stream([b"a\xe2\x82", b"\xac!\xe2", b"\x82\xac"], ["€!€"]) == (["a", "", "", ""], "€!€")


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert stream([b"abcd"], ["abcd", "bc"]) == (["a", ""], "bc")


def test_of_stop_strings_complete_together_the_longest_counts() -> None:
    assert stream([b"xabc"], ["c", "abc", "bc"]) == (["x", ""], "abc")


def test_nothing_comes_after_a_stop() -> None:
    detokenizer = IncrementalDetokenizer(Pieces([b"aSTOPb", b"c"]), ["STOP"])
    assert detokenizer.feed([0]) == "a"
    assert detokenizer.feed([1]) == ""
    assert detokenizer.flush() == ""


def test_a_broken_character_at_the_end_can_complete_a_stop_string() -> None:
    assert stream([b"ab\xf0\x9f"], ["b\ufffd"]) == (["a", ""], "b\ufffd")


def test_several_tokens_may_come_at_once() -> None:
    detokenizer = IncrementalDetokenizer(Pieces([b"a", b"\xc3", b"\xa9"]))
    assert detokenizer.feed([0, 1, 2]) == "aé"
    assert detokenizer.feed([]) == ""


@pytest.mark.parametrize(("skip", "expected"), [(True, "hi<tool>"), (False, "<s>hi<tool></s>")])
def test_special_tokens_are_skipped_as_in_decoding(skip: bool, expected: str) -> None:
    tokenizer = small_tokenizer()
    ids = [token(BOS), token("h"), token("i"), token(USER), token(EOS)]
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    assert detokenizer.feed(ids) + detokenizer.flush() == expected
    assert expected == tokenizer.decode(ids, skip_special_tokens=skip)


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="token id -1"):
        IncrementalDetokenizer(small_tokenizer()).feed([-1])


def test_the_cost_of_a_token_does_not_grow_with_the_output() -> None:
    detokenizer = IncrementalDetokenizer(Pieces([b"ab"]), ["abc" * 50, "ab" * 40 + "!"])
    for _ in range(5_000):
        detokenizer.feed([0])
        assert len(detokenizer._held) <= 81
