from __future__ import annotations

import math

import pytest

from headway.errors import ModelError, UnsupportedModel
from headway.models.gguf_spec import gguf_family, read_gguf_spec
from headway.models.rope import LinearScaling, YarnScaling, rope
from headway.models.spec import AttentionKind, DecoderSpec, Rope
from unit.models.gguf_files import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, VOCAB, llama_metadata


def metadata(architecture: str = "llama", **changes: object) -> dict[str, object]:
    """The tiny llama's, with `a__b=v` for `llama.a.b`; None removes the key."""
    result = {
        key.replace("llama.", f"{architecture}."): value for key, value in llama_metadata().items()
    }
    result["general.architecture"] = architecture
    for name, value in changes.items():
        key = f"{architecture}." + name.replace("__", ".")
        result.pop(key, None)
        if value is not None:
            result[key] = value
    return result


def read_spec(
    metadata: dict[str, object], num_tensors: int = 30, divisors: tuple[float, ...] | None = None
) -> DecoderSpec:
    return read_gguf_spec(metadata, num_tensors=num_tensors, rope_divisors=divisors)


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


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", 2**63])
def test_a_count_that_is_none_is_named_with_its_value(value: object) -> None:
    with pytest.raises(ModelError, match=r"^llama\.block_count: must be a whole number"):
        read_spec(metadata(block_count=value))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True, "x"])
def test_a_number_that_is_none_is_named_with_its_value(value: object) -> None:
    with pytest.raises(ModelError, match=rf"^llama\.rope\.freq_base: must be .*, not {value!r}"):
        read_spec(metadata(rope__freq_base=value))


def test_values_per_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"llama\.feed_forward_length: has a value per"):
        read_spec(metadata(feed_forward_length=(24, 32)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 1.5),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.dimension_sections", (1, 2)),
        ("expert_count", 8),
        ("attention.sliding_window", 4096),
        ("attention.causal", False),
        ("something.new", (1, 2)),
    ],
)
def test_what_a_spec_cannot_say_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^llama\.{key}: .*support"):
        read_spec(metadata(**{key.replace(".", "__"): value}))


@pytest.mark.parametrize("key", ["rope.dimension_count", "attention.value_length"])
def test_a_size_other_than_the_heads_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^llama\.{key}: 2 is not the head's size \(4\)"):
        read_spec(metadata(**{key.replace(".", "__"): 2}))


def test_an_odd_head_is_refused() -> None:
    odd = metadata(attention__key_length=3, attention__value_length=3)
    with pytest.raises(
        UnsupportedModel, match=r"attention\.key_length: the head's size is 3; even ones"
    ):
        read_spec(odd)


def test_more_heads_than_width_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"attention\.key_length: is missing"):
        read_spec(metadata(attention__head_count=32, attention__head_count_kv=32))


def test_kv_heads_must_divide_heads() -> None:
    with pytest.raises(ModelError, match=r"head_count_kv: 3 does not divide .*head_count 4"):
        read_spec(metadata(attention__head_count_kv=3))


def test_vocab_size_must_be_the_number_of_tokens() -> None:
    with pytest.raises(ModelError, match=r"vocab_size: is 12, and .* holds 10"):
        read_spec(metadata(vocab_size=12))


@pytest.mark.parametrize("tokens", [None, (), "abc"])
def test_without_tokens_there_is_no_spec(tokens: object) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens must be an array"):
        read_spec({**metadata(), "tokenizer.ggml.tokens": tokens})


def test_an_unknown_architecture_is_named_beside_those_that_work() -> None:
    with pytest.raises(UnsupportedModel, match="is 'mamba'; those that work in GGUF: llama, qwen2"):
        gguf_family({"general.architecture": "mamba"})


@pytest.mark.parametrize("value", [None, 7])
def test_a_file_without_an_architecture_is_an_error(value: object) -> None:
    with pytest.raises(ModelError, match=r"general\.architecture: (is missing|must be a string)"):
        gguf_family({"general.architecture": value})


def test_more_layers_than_tensors_are_refused_before_anything_is_made() -> None:
    with pytest.raises(ModelError, match=r"block_count: 4294967295 layers cannot be in 30 tensors"):
        read_spec(metadata(block_count=2**32 - 1))


def test_an_absurd_head_is_refused_before_anything_is_made() -> None:
    with pytest.raises(UnsupportedModel, match=r"key_length: the head's size is 4294967294"):
        read_spec(metadata(attention__key_length=2**32 - 2))


@pytest.mark.parametrize("kind", [None, "linear"])
@pytest.mark.parametrize("key", ["rope__scaling__factor", "rope__scale_linear"])
def test_a_factor_scales_linearly(kind: str | None, key: str) -> None:
    spec = read_spec(metadata(rope__scaling__type=kind, **{key: 4.0}))
    assert spec.attention[0].rope == rope(50000.0, HEAD_DIM, LinearScaling(factor=4.0))


def test_the_type_none_switches_a_factor_off() -> None:
    spec = read_spec(metadata(rope__scaling__type="none", rope__scaling__factor=4.0))
    assert spec.attention[0].rope == default_rope(50000.0)


def test_yarn_is_as_llama_cpp_means_it() -> None:
    spec = read_spec(
        metadata(
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=16,
            rope__scaling__attn_factor=2.0,
            rope__scaling__yarn_beta_fast=16.0,
            rope__scaling__finetuned=True,
        )
    )
    expected = YarnScaling(
        theta=50000.0,
        factor=4.0,
        original_positions=16,
        magnitude=2.0 * (1 + 0.1 * math.log(4.0)),
        beta_fast=16.0,
    )
    assert spec.attention[0].rope == rope(50000.0, HEAD_DIM, expected)


@pytest.mark.parametrize(
    ("stated", "original", "context"), [(64, 16, 64), (64, 64, 256), (64, None, 64)]
)
def test_yarn_buys_context_where_the_file_states_the_unscaled_one(
    stated: int, original: int | None, context: int
) -> None:
    spec = read_spec(
        metadata(
            context_length=stated,
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=original,
        )
    )
    assert spec.max_position == context


@pytest.mark.parametrize("kind", [None, "none", "linear"])
@pytest.mark.parametrize("key", ["rope__scaling__factor", "rope__scale_linear"])
def test_a_factor_of_0_is_as_absent(kind: str | None, key: str) -> None:
    spec = read_spec(metadata(rope__scaling__type=kind, **{key: 0.0}))
    assert spec == read_spec(metadata())


def test_a_factor_of_0_leaves_that_of_old_files() -> None:
    spec = read_spec(metadata(rope__scaling__factor=0.0, rope__scale_linear=4.0))
    assert spec.attention[0].rope == rope(50000.0, HEAD_DIM, LinearScaling(factor=4.0))


def test_divisors_of_a_file_divide_the_frequencies() -> None:
    spec = read_spec(metadata(), divisors=(1.0, 8.0))
    assert spec.attention[0].rope == Rope((1.0, 50000.0**-0.5 / 8))


def test_divisors_of_another_number_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'rope_freqs.weight': holds 3 values, .* needs 2"):
        read_spec(metadata(), divisors=(1.0, 2.0, 3.0))


def test_each_family_has_its_traits() -> None:
    qwen2, qwen3 = read_spec(metadata("qwen2")), read_spec(metadata("qwen3"))
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.post_norms) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.post_norms) == (False, True, False)
    gemma = read_spec(gemma3())
    assert (gemma.qkv_bias, gemma.qk_norm, gemma.post_norms) == (False, True, True)
    assert (gemma.activation, gemma.embedding_scale) == ("gelu_tanh", HIDDEN**0.5)
    assert (qwen3.activation, qwen3.embedding_scale) == ("silu", 1.0)


def gemma3(**changes: object) -> dict[str, object]:
    return metadata("gemma3", **{"block_count": 13, "attention__sliding_window": 8, **changes})


def test_every_sixth_layer_of_gemma3_sees_everything() -> None:
    spec = read_spec(gemma3(rope__scaling__type="linear", rope__scaling__factor=8.0))
    local = AttentionKind(default_rope(10_000.0), 8)
    full = AttentionKind(rope(50000.0, HEAD_DIM, LinearScaling(factor=8.0)))
    assert spec.attention == ((local,) * 5 + (full,)) * 2 + (local,)
    assert len({id(kind) for kind in spec.attention}) == 2


def test_a_window_of_0_is_none() -> None:
    spec = read_spec(gemma3(attention__sliding_window=0))
    assert {kind.window for kind in spec.attention} == {None}


def test_gemma3s_pattern_and_local_base_may_be_in_the_file() -> None:
    spec = read_spec(gemma3(attention__sliding_window_pattern=2, rope__freq_base_swa=500.0))
    assert [kind.window for kind in spec.attention] == [8, None] * 6 + [8]
    assert spec.attention[0].rope == default_rope(500.0)


def test_only_gemma3_27b_scales_by_its_heads_share_of_the_width() -> None:
    keys = {"attention__key_length": 8, "attention__value_length": 8}
    small = read_spec(gemma3(**keys))
    large = read_spec(gemma3(**keys, block_count=62), num_tensors=900)
    assert small.attention_scale == 8**-0.5
    assert large.attention_scale == (HIDDEN // HEADS) ** -0.5


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_softcaps_of_gemma2_are_refused(key: str) -> None:
    assert read_spec(gemma3(**{key: 0.0})) == read_spec(gemma3())
    with pytest.raises(UnsupportedModel, match=rf"^gemma3\.{key}: 30.0 is not supported"):
        read_spec(gemma3(**{key: 30.0}))
