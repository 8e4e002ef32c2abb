"""GGUF's tokenizer "llama": BPE by scores, as SentencePiece does it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ModelError
from headway.text.detokenizer import IncrementalDetokenizer
from headway.text.sentencepiece import byte_tokens, sentencepiece_backend
from headway.text.tokenizer import Tokenizer

UNKNOWN, BOS, EOS, INST, USER = "<unk>", "<s>", "</s>", "[INST]", "<b>"
BYTES = byte_tokens()
LETTERS = ("▁", *"abdehloirw", "é")
WORDS = ("he", "ll", "hell", "hello", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "▁▁", "ab")
TOKENS = (UNKNOWN, BOS, EOS, INST, USER, *BYTES, *WORDS, *LETTERS)
TYPES = (2, 3, 3, 3, 4, *[6] * 256, *[1] * len(WORDS), *[1] * len(LETTERS))
SCORES = (*[0.0] * (5 + 256), *(-float(i) for i in range(len(WORDS) + len(LETTERS))))


def tokenizer(**changes: object) -> Tokenizer:
    """Of `tokenizer.ggml.*` fields with changes; None removes one."""
    fields: dict[str, object] = {
        "model": "llama",
        "tokens": TOKENS,
        "token_type": TYPES,
        "scores": SCORES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return Tokenizer.from_gguf(
        {f"tokenizer.ggml.{k}": v for k, v in fields.items() if v is not None}
    )


TOKENIZER = tokenizer()
WITHOUT_PREFIX = tokenizer(add_space_prefix=False)


def texts(ids: list[int]) -> list[str]:
    return [TOKENS[token] for token in ids]


def test_merges_make_the_token_of_the_highest_score_first() -> None:
    assert texts(TOKENIZER.encode("hello world")) == [BOS, "▁hello", "▁world"]
    assert texts(WITHOUT_PREFIX.encode("hellor")) == [BOS, "hello", "r"]
    assert texts(WITHOUT_PREFIX.encode("helor")) == [BOS, "he", "l", "or"]


ALPHABET = "ab"
GROWN = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12)


@settings(deadline=None)
@given(GROWN, st.randoms(use_true_random=False), st.text(ALPHABET, max_size=30))
def test_ids_are_those_of_merging_the_best_neighbours_one_by_one(
    grown: list[tuple[int, int]], random: object, text: str
) -> None:
    pieces = list(ALPHABET)
    for left, right in grown:
        piece = pieces[left % len(pieces)] + pieces[right % len(pieces)]
        if piece not in pieces and len(piece) < 10:
            pieces.append(piece)
    scores = [-float(i) for i in range(len(pieces))]
    random.shuffle(scores)  # type: ignore[attr-defined]
    tokens = [UNKNOWN, *pieces]
    backend = sentencepiece_backend(
        tokens,
        range(1, len(tokens)),
        [0.0, *scores],
        unknown=UNKNOWN,
        add_space_prefix=False,
    )
    assert backend.encode(text).tokens == merged(text, dict(zip(pieces, scores, strict=True)))


def merged(text: str, score: dict[str, float]) -> list[str]:
    """SentencePiece's rule in words: join the neighbours that make the best token, the
    leftmost of equals, until none make one."""
    pieces = list(text)
    while True:
        joins = [(score.get(a + b), i) for i, (a, b) in enumerate(pairwise(pieces))]
        known = [(value, -i) for value, i in joins if value is not None]
        if not known:
            return pieces
        at = -max(known)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


PIECES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])),
        st.sampled_from([BOS, EOS, INST, USER, UNKNOWN, "hello", " hello", "  ", "é", "日"]),
    )
).map("".join)


@settings(deadline=None)
@given(PIECES)
def test_without_a_prefix_the_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    ids = WITHOUT_PREFIX.encode(text, add_special_tokens=False)
    assert b"".join(map(WITHOUT_PREFIX.token_bytes, ids)) == text.encode()
    assert WITHOUT_PREFIX.decode(ids, skip_special_tokens=False) == text


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), min_size=1))
def test_with_a_prefix_decoding_keeps_the_space(text: str) -> None:
    if not any(mark in text for mark in (UNKNOWN, BOS, EOS, INST, USER)):
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == " " + text


def test_the_prefix_comes_before_a_text_and_after_each_special_token() -> None:
    assert texts(TOKENIZER.encode("hello[INST]hello<b>hello")) == [
        BOS, "▁hello", INST, "▁hello", USER, "▁hello",
    ]  # fmt: skip
    assert texts(WITHOUT_PREFIX.encode("hello[INST]hello")) == [BOS, "hello", INST, "hello"]
    assert TOKENIZER.encode("", add_special_tokens=False) == []


def test_characters_that_are_no_tokens_become_their_bytes() -> None:
    ids = WITHOUT_PREFIX.encode("日\n", add_special_tokens=False)
    assert texts(ids) == ["<0xE6>", "<0x97>", "<0xA5>", "<0x0A>"]
    assert WITHOUT_PREFIX.decode(ids) == "日\n"


def test_the_text_of_a_byte_token_is_text() -> None:
    assert WITHOUT_PREFIX.decode(WITHOUT_PREFIX.encode("<0x0A>")) == "<0x0A>"


def test_without_tokens_for_bytes_a_character_becomes_the_unknown_token_once_in_a_row() -> None:
    kept = [i for i, kind in enumerate(TYPES) if kind != 6]
    few = tokenizer(
        tokens=tuple(TOKENS[i] for i in kept),
        token_type=tuple(TYPES[i] for i in kept),
        scores=tuple(SCORES[i] for i in kept),
    )
    assert few.encode("a日本a", add_special_tokens=False)[2] == 0
    assert few.encode("a日本a", add_special_tokens=False).count(0) == 1


def test_bos_is_added_unless_the_file_says_otherwise() -> None:
    assert TOKENIZER.encode("")[0] == 1
    assert tokenizer(add_bos_token=False).encode("a") == TOKENIZER.encode("a")[1:]


def test_marks_are_special_and_user_defined_tokens_are_text() -> None:
    assert [t for t in TOKENS if TOKENIZER.is_special(TOKENS.index(t))] == [UNKNOWN, BOS, EOS, INST]
    assert TOKENIZER.decode([3, TOKENS.index("▁hello"), 4, 2]) == " hello<b>"


def test_a_user_defined_token_is_found_before_any_merge_and_the_longest_of_those() -> None:
    tokens = (*TOKENS, "\n", "\n\n", "  ")
    several = tokenizer(
        tokens=tokens,
        token_type=(*TYPES, 4, 4, 4),
        scores=(*SCORES, -1000.0, -1000.0, -1000.0),
        add_space_prefix=False,
    )
    ids = several.encode("\n\n\na  hello", add_special_tokens=False)
    assert [tokens[i] for i in ids] == ["\n\n", "\n", "a", "  ", "hello"]
    assert several.decode(ids) == "\n\n\na  hello"


def test_unused_tokens_are_text_as_in_llama_cpp() -> None:
    unused = tuple(5 if token == "hello" else k for token, k in zip(TOKENS, TYPES, strict=True))
    assert tokenizer(token_type=unused).encode("hello") == TOKENIZER.encode("hello")


def test_no_merge_makes_a_control_token() -> None:
    ab = TOKENS.index("ab")
    control = tuple(3 if i == ab else kind for i, kind in enumerate(TYPES))
    # As text it is found, as a mark; but no merge makes it of "▁a" and "b".
    assert tokenizer(token_type=control).encode("ab") == [1, ab]
    assert tokenizer(token_type=control).encode("a b")[1:] == [
        TOKENS.index(t) for t in ("▁", "a", "▁", "b")
    ]


def test_a_stream_gives_each_character_when_its_last_byte_is_there_and_keeps_the_space() -> None:
    stream = IncrementalDetokenizer(TOKENIZER)
    ids = TOKENIZER.encode("hello é日🙂 world")
    assert [stream.feed([token]) for token in ids] == [
        "", " hello", " ", "é", "", "", "日", "", "", "", "🙂", " world",
    ]  # fmt: skip
    assert stream.flush() == ""


def test_half_a_character_at_the_end_of_a_stream_becomes_the_replacement_character() -> None:
    stream = IncrementalDetokenizer(TOKENIZER)
    assert stream.feed([TOKENS.index("<0xE6>"), TOKENS.index("<0x97>")]) == ""
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scores", None, "is missing"),
        ("scores", SCORES[1:], f"holds {len(TOKENS) - 1} scores for {len(TOKENS)} tokens"),
        ("scores", (float("nan"), *SCORES[1:]), "must be finite"),
        ("scores", (1, *SCORES[1:]), "item 0 must be float, not 1"),
        ("tokens", ("", *TOKENS[1:-1], "ab"), "'ab' is item"),
        ("bos_token_id", None, "is missing, and add_bos_token"),
        ("add_space_prefix", "yes", "must be bool"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=rf"^tokenizer\.ggml\.{field}: {message}"):
        tokenizer(**{field: value})


def test_a_vocabulary_that_cannot_spell_every_text_is_refused() -> None:
    tokens = tuple("x" if token == "<0x41>" else token for token in TOKENS)
    with pytest.raises(ModelError, match=r"tokens: <0x41> is missing, and .* no unknown token"):
        tokenizer(tokens=tokens, token_type=(1, *TYPES[1:]))


def test_a_token_too_long_to_find_its_merges_is_refused() -> None:
    with pytest.raises(ModelError, match="one has 1001 characters; at most 1000"):
        tokenizer(tokens=(*TOKENS[:-1], "a" * 1001))
