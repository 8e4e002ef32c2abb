from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidRequest, ModelError, UnsupportedModel
from headway.text.byte_level import PRE_TOKENIZERS
from headway.text.tokenizer import Tokenizer
from unit.text.vocabulary import (
    ALPHABET,
    BOS,
    EOS,
    EOT,
    MERGES,
    TOKENS,
    TYPES,
    UNKNOWN,
    USER,
    metadata,
    small_tokenizer,
    token,
)

TOKENIZER = small_tokenizer()
TOKENIZERS = {pre: small_tokenizer(pre=pre) for pre in PRE_TOKENIZERS}
PIECES = st.lists(
    st.one_of(
        st.text(), st.sampled_from([BOS, EOS, UNKNOWN, USER, "hello", " hello", "é", "12", "\n\n"])
    )
).map("".join)


@settings(deadline=None)
@given(PIECES)
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(pre: str, text: str) -> None:
    tokenizer = TOKENIZERS[pre]
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_byte_is_one_token() -> None:
    assert {TOKENIZER.token_bytes(token(character)) for character in ALPHABET} == {
        bytes([byte]) for byte in range(256)
    }


def test_merges_join_within_a_word_and_take_the_space_before_it() -> None:
    assert TOKENIZER.encode("hello hello") == [token("hello"), token("Ġhello")]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_which_pre_tokenizers_take_whole_words(pre: str) -> None:
    merges = tuple(m for m in MERGES if m not in ("hell o", "Ġ hello"))
    whole = small_tokenizer(pre=pre, merges=merges).encode("hello") == [token("hello")]
    assert whole is (pre in ("llama-bpe", "llama3", "llama-v3", "tekken"))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_which_pre_tokenizers_take_digits_one_by_one(pre: str) -> None:
    one_by_one = TOKENIZERS[pre].encode("12") == [token("1"), token("2")]
    assert one_by_one is (pre in ("smollm", "qwen2", "deepseek-r1-qwen", "tekken"))


def test_tekken_cuts_where_a_capital_begins_and_keeps_marks_with_their_letter() -> None:
    merges = (*MERGES, "o H", "Ì ģ", "e Ìģ")
    tokens = (*TOKENS, "oH", "Ìģ", "eÌģ")
    changes = {"merges": merges, "tokens": tokens, "token_type": (*TYPES, 1, 1, 1)}
    texts = {
        pre: [small_tokenizer(pre=pre, **changes).encode(text) for text in ("oH", "e\u0301")]
        for pre in ("tekken", "qwen2")
    }
    assert texts["tekken"] == [[token("o"), token("H")], [len(TOKENS) + 2]]
    assert texts["qwen2"] == [[len(TOKENS)], [token("e"), len(TOKENS) + 1]]


def test_special_tokens_are_recognised_in_text() -> None:
    marks = (EOS, USER, UNKNOWN)
    assert TOKENIZER.encode("a".join(marks)) == [
        token(EOS), token("a"), token(USER), token("a"), token(UNKNOWN)
    ]  # fmt: skip


def test_decoding_skips_special_tokens_only_when_asked_to() -> None:
    ids = [token(BOS), token("hello"), token(UNKNOWN), token(USER), token(EOS)]
    assert TOKENIZER.decode(ids) == f"hello{USER}"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == f"{BOS}hello{UNKNOWN}{USER}{EOS}"


def test_control_and_unknown_tokens_are_special_and_user_defined_ones_are_not() -> None:
    special = {i for i in range(TOKENIZER.vocab_size) if TOKENIZER.is_special(i)}
    assert special == {token(BOS), token(EOS), token(EOT), token(UNKNOWN)}


def test_a_byte_token_stands_for_its_byte() -> None:
    tokenizer = small_tokenizer(tokens=(*TOKENS, "<0xFF>"), token_type=(*TYPES, 6))
    assert tokenizer.token_bytes(len(TOKENS)) == b"\xff"


def test_empty_tokens_are_gaps_and_may_be_many() -> None:
    tokenizer = small_tokenizer(tokens=(*TOKENS, "", ""), token_type=(*TYPES, 1, 3))
    assert tokenizer.vocab_size == len(TOKENS) + 2
    assert tokenizer.decode([len(TOKENS), token("a"), len(TOKENS) + 1]) == "a"
    assert tokenizer.encode("hello") == [token("hello")]


def test_bytes_that_are_no_utf8_decode_to_the_replacement_character() -> None:
    first, second = TOKENIZER.encode("Ĝ")
    assert TOKENIZER.decode([first, token("a")]) == "\ufffda"
    assert TOKENIZER.token_text(first) == "\ufffd"
    assert TOKENIZER.decode([first, second]) == "Ĝ"


def test_a_normal_token_outside_the_byte_alphabet_stands_for_its_own_text() -> None:
    tokenizer = small_tokenizer(tokens=(*TOKENS, "日本"), token_type=(*TYPES, 1))
    assert tokenizer.token_bytes(len(TOKENS)) == "日本".encode()


def test_bos_is_added_as_the_file_says_and_only_with_special_tokens() -> None:
    tokenizer = small_tokenizer(add_bos_token=True)
    assert tokenizer.encode("a") == [token(BOS), token("a")]
    assert tokenizer.encode("a", add_special_tokens=False) == [token("a")]
    assert TOKENIZER.encode("a") == [token("a")]


@pytest.mark.parametrize(("pre", "added"), [("llama-bpe", True), ("gpt-2", False)])
def test_where_the_file_does_not_say_the_pre_tokenizer_decides_on_bos(
    pre: str, added: bool
) -> None:
    tokenizer = small_tokenizer(pre=pre, add_bos_token=None)
    assert (tokenizer.encode("") == [token(BOS)]) is added


def test_encoded_ids_are_the_callers_own() -> None:
    tokenizer = small_tokenizer(add_bos_token=True)
    tokenizer.encode("").append(0)
    assert tokenizer.encode("") == [token(BOS)]


def test_ends_are_eos_then_end_of_turn_and_of_message_each_once() -> None:
    tokenizer = small_tokenizer(eot_token_id=token(EOT), eom_token_id=token(EOS))
    assert tokenizer.eos_token_ids == (token(EOS), token(EOT))
    assert (tokenizer.bos_token, tokenizer.eos_token) == (BOS, EOS)


@pytest.mark.parametrize(
    "mark",
    [
        *("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>"),
        *("<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    ],
)
def test_what_ends_a_generation_is_a_special_end_though_the_file_names_only_eos(
    mark: str,
) -> None:
    tokens = (*TOKENS, mark)
    for kind in (3, 4):  # control, user-defined
        tokenizer = small_tokenizer(tokens=tokens, token_type=(*TYPES, kind))
        assert tokenizer.eos_token_ids == (token(EOS), len(TOKENS))
        assert tokenizer.is_special(len(TOKENS))
    text = small_tokenizer(tokens=tokens, token_type=(*TYPES, 1))
    assert text.eos_token_ids == (token(EOS),)


def test_a_bos_whose_text_is_no_name_of_a_template_is_added_all_the_same() -> None:
    for mark in ("$A", "<a:1>", "b c", "🙂"):
        tokenizer = small_tokenizer(
            tokens=(*TOKENS, mark),
            token_type=(*TYPES, 3),
            bos_token_id=len(TOKENS),
            add_bos_token=True,
        )
        assert tokenizer.encode("a") == [len(TOKENS), token("a")]


def test_a_model_may_have_neither_bos_nor_eos() -> None:
    tokenizer = small_tokenizer(bos_token_id=None, eos_token_id=None)
    assert (tokenizer.bos_token_id, tokenizer.bos_token) == (None, None)
    assert (tokenizer.eos_token_ids, tokenizer.eos_token) == ((), None)


def test_the_vocabulary_has_the_files_size() -> None:
    assert TOKENIZER.vocab_size == len(TOKENS)


@pytest.mark.parametrize("bad", [-1, len(TOKENS), 2**40])
@pytest.mark.parametrize("method", ["token_bytes", "token_text", "is_special"])
def test_an_id_outside_the_vocabulary_is_named(method: str, bad: int) -> None:
    with pytest.raises(ValueError, match=f"token id {bad} is outside the vocabulary"):
        getattr(TOKENIZER, method)(bad)


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_an_id_outside_the_vocabulary_is_an_error(skip: bool) -> None:
    with pytest.raises(ValueError, match="token id -1"):
        TOKENIZER.decode([0, -1], skip_special_tokens=skip)


def test_half_a_surrogate_pair_is_an_invalid_request_that_says_where() -> None:
    with pytest.raises(InvalidRequest, match=r"prompt: character 2 \('\\ud83d'\)"):
        TOKENIZER.encode("ab\ud83dc")


def test_threads_may_share_a_tokenizer() -> None:
    texts = [f"hello {n} " * 20 for n in range(64)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(TOKENIZER.encode, texts)) == [TOKENIZER.encode(t) for t in texts]


@pytest.mark.parametrize("field", ["model", "tokens", "merges"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=rf"tokenizer\.ggml\.{field}: is missing"):
        small_tokenizer(**{field: None})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", 3, "must be str, not 3"),
        ("tokens", "abc", "must be tuple, not 'abc'"),
        ("tokens", ("a", 1), "item 1 must be str, not 1"),
        ("token_type", TYPES[1:], f"holds {len(TYPES) - 1} types for {len(TYPES)} tokens"),
        ("tokens", (*TOKENS[:-1], "a"), f"'a' is item {token('a')} and {len(TOKENS) - 1}"),
        ("token_type", (7, *TYPES[1:]), "holds 7; 0 to 6 are known"),
        ("token_type", ("x",) * len(TYPES), "item 0 must be int, not 'x'"),
        ("add_bos_token", 1, "must be bool, not 1"),
        ("bos_token_id", True, "must be int, not True"),
        ("bos_token_id", len(TYPES), f"{len(TYPES)} is outside the vocabulary"),
        ("eot_token_id", -1, "-1 is outside the vocabulary"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=rf"^tokenizer\.ggml\.{field}: {message}"):
        small_tokenizer(**{field: value})


def test_bos_that_is_asked_for_must_be_there() -> None:
    with pytest.raises(ModelError, match="bos_token_id: is missing, and add_bos_token"):
        small_tokenizer(bos_token_id=None, add_bos_token=True)


@pytest.mark.parametrize("merge", ["h zz", "x y", "single"])
def test_a_merge_of_what_is_no_token_is_an_error(merge: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.merges do not fit"):
        small_tokenizer(merges=(*MERGES, merge))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", "bert", "is 'bert'; those that work: 'gpt2' .*, 'llama'"),
        ("pre", "qwen35", "is 'qwen35'; those that work: gpt-2, smollm, llama-bpe, .*default"),
        ("add_eos_token", True, "an end after every prompt"),
        ("add_sep_token", True, "a separator after every prompt"),
        ("remove_extra_whitespaces", True, "dropping spaces"),
    ],
)
def test_what_this_version_does_not_do_is_refused_by_name(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^tokenizer\.ggml\.{field}: {message}"):
        small_tokenizer(**{field: value})


def test_a_file_that_names_no_pre_tokenizer_has_the_default_one() -> None:
    fields = metadata()
    del fields["tokenizer.ggml.pre"]
    text = "x=12345 ++ don't"
    assert Tokenizer.from_gguf(fields).encode(text) == TOKENIZERS["default"].encode(text)
