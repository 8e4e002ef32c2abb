from __future__ import annotations

import pytest

from headway.errors import ModelError, UnsupportedModel
from headway.models.families import family_of, read_spec
from headway.models.spec import AttentionKind, DecoderSpec, Rope
from unit.models.gguf_files import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, VOCAB, llama_metadata


def metadata(**changes: object) -> dict[str, object]:
    """The tiny llama's, with `a__b=v` for `llama.a.b`; None removes the key."""
    result = {"general.architecture": "llama", **llama_metadata()}
    for name, value in changes.items():
        key = "llama." + name.replace("__", ".")
        result.pop(key, None)
        if value is not None:
            result[key] = value
    return result


def default_rope(theta: float) -> Rope:
    pairs = HEAD_DIM // 2
    return Rope(tuple(theta ** (-i / pairs) for i in range(pairs)))


def test_llama_metadata_become_a_spec() -> None:
    assert read_spec(metadata()) == DecoderSpec(
        architecture="llama",
        attention=(AttentionKind(default_rope(50000.0)),) * 2,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_heads=HEADS,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        max_position=64,
        rms_norm_eps=1e-5,
        attention_scale=HEAD_DIM**-0.5,
    )


def test_absent_optional_keys_mean_what_gguf_says() -> None:
    spec = read_spec(metadata(attention__head_count_kv=None, rope__freq_base=None))
    assert spec.num_kv_heads == HEADS
    assert spec.attention[0].rope == default_rope(10_000.0)


def test_a_head_may_be_of_another_size_than_its_share() -> None:
    spec = read_spec(
        metadata(attention__key_length=8, attention__value_length=8, rope__dimension_count=8)
    )
    assert spec.head_dim == 8


def test_values_that_ask_for_nothing_are_accepted() -> None:
    plain = read_spec(metadata())
    assert plain == read_spec(
        metadata(expert_count=0, rope__scaling__type="none", attention__causal=True, vocab_size=10)
    )


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=rf"^llama\.{key}: is missing"):
        read_spec(metadata(**{key.replace(".", "__"): None}))


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
def test_a_count_that_is_none_is_named_with_its_value(value: object) -> None:
    with pytest.raises(ModelError, match=rf"^llama\.block_count: must be .*, not {value!r}"):
        read_spec(metadata(block_count=value))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1, "x"])
def test_a_number_that_is_none_is_named_with_its_value(value: object) -> None:
    with pytest.raises(ModelError, match=rf"^llama\.rope\.freq_base: must be .*, not {value!r}"):
        read_spec(metadata(rope__freq_base=value))


def test_values_per_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"llama\.feed_forward_length: has a value per"):
        read_spec(metadata(feed_forward_length=(24, 32)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.factor", 8.0),
        ("rope.scaling.attn_factor", 1.0),
        ("expert_count", 8),
        ("attention.sliding_window", 4096),
        ("attention.causal", False),
        ("something.new", (1, 2)),
    ],
)
def test_what_a_spec_cannot_say_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^llama\.{key}: .*not supported"):
        read_spec(metadata(**{key.replace(".", "__"): value}))


@pytest.mark.parametrize("key", ["rope.dimension_count", "attention.value_length"])
def test_a_size_other_than_the_heads_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^llama\.{key}: 2 is not the head's size \(4\)"):
        read_spec(metadata(**{key.replace(".", "__"): 2}))


def test_an_odd_head_is_refused() -> None:
    odd = metadata(attention__key_length=3, attention__value_length=3)
    with pytest.raises(UnsupportedModel, match="head's size 3 is odd"):
        read_spec(odd)


def test_more_heads_than_width_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"attention\.key_length: is missing"):
        read_spec(metadata(attention__head_count=32, attention__head_count_kv=32))


def test_kv_heads_must_divide_heads() -> None:
    with pytest.raises(ModelError, match=r"head_count_kv: 3 does not divide head_count 4"):
        read_spec(metadata(attention__head_count_kv=3))


def test_vocab_size_must_be_the_number_of_tokens() -> None:
    with pytest.raises(ModelError, match=r"vocab_size: is 12, and .* holds 10"):
        read_spec(metadata(vocab_size=12))


@pytest.mark.parametrize("tokens", [None, (), "abc"])
def test_without_tokens_there_is_no_spec(tokens: object) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens must be an array"):
        read_spec({**metadata(), "tokenizer.ggml.tokens": tokens})


def test_an_unknown_architecture_is_named_beside_those_that_work() -> None:
    with pytest.raises(UnsupportedModel, match="is 'mamba'; those that work: llama"):
        family_of({"general.architecture": "mamba"})


@pytest.mark.parametrize("value", [None, 7])
def test_a_file_without_an_architecture_is_an_error(value: object) -> None:
    with pytest.raises(ModelError, match=r"general\.architecture must be a string"):
        family_of({"general.architecture": value})
