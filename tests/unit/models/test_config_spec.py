from __future__ import annotations

import math

import pytest

from headway.errors import ModelError, UnsupportedModel
from headway.models.config_spec import config_family, is_tied, read_config_spec
from headway.models.rope import LinearScaling, Llama3Scaling, YarnScaling, rope
from headway.models.spec import AttentionKind, DecoderSpec, Rope
from unit.models.gguf_files import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, VOCAB
from unit.models.hf_files import CLASSES, LAYERS, config

PLAIN = rope(50000.0, HEAD_DIM)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(config: dict[str, object], num_tensors: int = 30) -> DecoderSpec:
    return read_config_spec(config, num_tensors=num_tensors)


def read_rope(config: dict[str, object]) -> Rope:
    return read(config).attention[0].rope


def windows(config: dict[str, object]) -> list[int | None]:
    return [kind.window for kind in read(config, 60).attention]


def test_a_llamas_config_becomes_a_spec() -> None:
    assert read(config()) == DecoderSpec(
        architecture="llama",
        attention=(AttentionKind(PLAIN),) * LAYERS,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        max_position=64,
        rms_norm_eps=1e-5,
        attention_scale=HEAD_DIM**-0.5,
    )


@pytest.mark.parametrize("family", CLASSES)
def test_each_family_has_its_name_and_traits(family: str) -> None:
    spec = read(config(family))
    assert spec.architecture == config_family(config(family)).name == family
    assert spec.qkv_bias == (family == "qwen2")
    assert spec.qk_norm == (family in ("qwen3", "gemma3"))
    assert spec.post_norms == (family == "gemma3")
    assert spec.activation == ("gelu_tanh" if family == "gemma3" else "silu")
    assert spec.embedding_scale == (HIDDEN**0.5 if family == "gemma3" else 1.0)


def test_null_is_as_absent() -> None:
    spec = read(config(num_key_value_heads=None, head_dim=None, rope_scaling=None))
    assert (spec.num_kv_heads, spec.head_dim) == (HEADS, HIDDEN // HEADS)
    assert read_rope(config(rope_theta=None)) == rope(10_000.0, HEAD_DIM)


def test_a_head_may_be_of_another_size_than_its_share() -> None:
    assert read(config("qwen3", head_dim=8)).head_dim == 8


def test_what_transformers_does_not_read_is_left_alone() -> None:
    more = {"transformers.js_config": {"a": 1}, "rope_interleaved": False, "use_cache": True}
    assert read(config() | more) == read(config())


@pytest.mark.parametrize(
    ("family", "default"), [("llama", False), ("qwen3", False), ("gemma3", True)]
)
def test_the_head_is_tied_where_the_config_or_the_family_says(family: str, default: bool) -> None:
    assert is_tied(config(family, tie_word_embeddings=None)) is default
    assert is_tied(config(family, tie_word_embeddings=not default)) is not default


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps"],
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=rf"^{key}: is missing"):
        read(config(**{key: None}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", 16.0),
        ("vocab_size", True),
        ("vocab_size", 10**30),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", "small"),
        ("rope_theta", 0),
        ("rope_scaling", [1]),
        ("rope_parameters", "yarn"),
        ("tie_word_embeddings", 1),
    ],
)
def test_a_value_that_is_none_is_named(key: str, value: object) -> None:
    changed = config(**{key: value})
    check = is_tied if key == "tie_word_embeddings" else read
    with pytest.raises(ModelError, match=rf"^{key}: must be "):
        check(changed)


def test_more_layers_than_tensors_are_refused_before_anything_is_made() -> None:
    with pytest.raises(ModelError, match=r"num_hidden_layers: \d+ layers cannot be in 30 tensors"):
        read(config(num_hidden_layers=2**62))


@pytest.mark.parametrize("classes", [None, "LlamaForCausalLM", [1]])
def test_a_config_without_architectures_is_an_error(classes: object) -> None:
    with pytest.raises(ModelError, match="architectures: must be a list of strings"):
        config_family({"architectures": classes})


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Gemma3ForConditionalGeneration"])
def test_an_unknown_architecture_is_named_beside_those_that_work(name: str) -> None:
    message = f"is '{name}'; those that work as safetensors: {', '.join(CLASSES.values())}"
    with pytest.raises(UnsupportedModel, match=message):
        config_family({"architectures": [name]})


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "hidden_act", "gelu"),
        ("llama", "attention_bias", True),
        ("llama", "mlp_bias", True),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "quantization_config", {"quant_method": "awq"}),
        ("mistral", "layer_types", ["sliding_attention"]),
        ("qwen3", "attention_bias", True),
        ("qwen2", "layer_types", ["full_attention", "chunked_attention"]),
        ("gemma3", "hidden_activation", "silu"),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("gemma3", "final_logit_softcapping", 30.0),
        ("gemma3", "use_bidirectional_attention", True),
        ("llama", "head_dim", 3),
    ],
)
def test_what_a_spec_cannot_say_is_refused_by_name(family: str, key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^{key}: "):
        read(config(family, **{key: value}))


def test_a_quantised_checkpoint_is_refused_by_its_method() -> None:
    with pytest.raises(UnsupportedModel, match=r"'awq' checkpoints do not work; .* GGUF"):
        read(config(quantization_config={"quant_method": "awq"}))


def test_values_that_ask_for_nothing_are_accepted() -> None:
    nothing = {
        "attention_bias": False,
        "mlp_bias": None,
        "hidden_act": "silu",
        "partial_rotary_factor": 1.0,
        "quantization_config": None,
    }
    assert read(config(**nothing)) == read(config())
    capped = {"attn_logit_softcapping": None, "final_logit_softcapping": 0.0}
    assert read(config("gemma3", **capped)) == read(config("gemma3"))


# Rotary settings, in both forms.


def in_both_forms(settings: dict[str, object]) -> list[dict[str, object]]:
    old = {("type" if key == "rope_type" else key): value for key, value in settings.items()}
    return [
        config(rope_scaling=old),
        config(rope_scaling=settings),
        config(rope_theta=None, rope_parameters={**settings, "rope_theta": 50000}),
    ]


def test_both_forms_say_the_same_of_linear_scaling() -> None:
    for form in in_both_forms({"rope_type": "linear", "factor": 4}):
        assert read_rope(form) == rope(50000.0, HEAD_DIM, LinearScaling(factor=4.0))


def test_both_forms_say_the_same_of_llama3() -> None:
    expected = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=32
    )
    for form in in_both_forms(LLAMA3):
        assert read_rope(form) == rope(50000.0, HEAD_DIM, expected)


def test_both_forms_say_the_same_of_yarn() -> None:
    expected = YarnScaling(
        theta=50000.0,
        factor=4.0,
        original_positions=16,
        magnitude=1 + 0.1 * math.log(4),
        beta_fast=16.0,
        beta_slow=2.0,
        truncate=False,
    )
    settings = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
    }
    for form in in_both_forms(settings):
        assert read_rope(form) == rope(50000.0, HEAD_DIM, expected)


@pytest.mark.parametrize(
    ("settings", "magnitude"),
    [
        ({"attention_factor": 1.25}, 1.25),
        (
            {"mscale": 2.0, "mscale_all_dim": 0.5},
            (1 + 0.2 * math.log(4)) / (1 + 0.05 * math.log(4)),
        ),
        ({"mscale": 2.0}, 1 + 0.1 * math.log(4)),
    ],
)
def test_yarns_magnitude(settings: dict[str, object], magnitude: float) -> None:
    yarn = config(rope_scaling={"rope_type": "yarn", "factor": 4.0, **settings})
    assert read_rope(yarn).magnitude == pytest.approx(magnitude, rel=1e-15)


def test_the_original_context_is_the_models_unless_said() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    said = config(head_dim=64, rope_scaling={**yarn, "original_max_position_embeddings": 64})
    assert read_rope(config(head_dim=64, rope_scaling=yarn)) == read_rope(said)
    outside = config(head_dim=64, rope_scaling=yarn, original_max_position_embeddings=16)
    assert read_rope(outside) != read_rope(said)


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({"rope_type": "linear", "factor": 2.5}, 160),
        (YARN, 256),
        ({**YARN, "original_max_position_embeddings": 16}, 64),
        ({**YARN, "original_max_position_embeddings": 48}, 192),
        ({**YARN, "original_max_position_embeddings": 8}, 64),
        ({**YARN, "factor": 2.0**60}, 2**63 - 1),
        (LLAMA3, 64),
        ({"rope_type": "default"}, 64),
    ],
)
def test_linear_scaling_and_yarn_buy_context(settings: dict[str, object], context: int) -> None:
    for form in in_both_forms(settings):
        assert read(form).max_position == context


def test_an_original_length_beside_the_settings_counts_for_the_context() -> None:
    form = config(rope_scaling=YARN, original_max_position_embeddings=32)
    assert read(form).max_position == 128


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "proportional"])
def test_other_scalings_are_refused_by_name(kind: str) -> None:
    message = (
        f"rope_type: '{kind}' is not supported; those that work: default, linear, llama3, yarn"
    )
    for form in in_both_forms({"rope_type": kind, "factor": 2.0}):
        with pytest.raises(UnsupportedModel, match=message):
            read(form)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_type": "linear"}, "factor: is missing"),
        ({"rope_type": "linear", "factor": 0.5}, "factor: must be a finite number from 1"),
        ({"rope_type": "linear", "factor": 2, "beta_fast": 1}, "beta_fast: is not supported for"),
        ({"rope_type": "default", "short_factor": [1]}, "short_factor: is not supported for"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor: heads"),
        ({**LLAMA3, "high_freq_factor": 1}, "high_freq_factor: 1 must be above"),
        ({"full_attention": {}}, "full_attention: is not supported for"),
    ],
)
def test_wrong_rotary_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=rf"^rope_parameters\.{message}"):
        read(config(rope_parameters=settings))


def test_both_forms_at_once_are_refused() -> None:
    linear = {"rope_type": "linear", "factor": 4}
    with pytest.raises(ModelError, match="rope_scaling: stands beside rope_parameters"):
        read(config(rope_scaling=linear, rope_parameters=linear))


# Windows.


def test_a_llama_has_no_window() -> None:
    assert windows(config(sliding_window=8)) == [None] * LAYERS


def test_mistrals_window_is_every_layers() -> None:
    assert windows(config("mistral", sliding_window=8)) == [8] * LAYERS
    assert windows(config("mistral", sliding_window=None)) == [None] * LAYERS


def test_a_mistral_that_does_not_speak_of_its_window_is_refused() -> None:
    silent = config("mistral")
    del silent["sliding_window"]
    with pytest.raises(ModelError, match="sliding_window: is missing; null means none"):
        read(silent)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwens_window_is_that_of_the_later_layers_and_only_in_use(family: str) -> None:
    keys = {"num_hidden_layers": 4, "sliding_window": 8, "max_window_layers": 3}
    assert windows(config(family, **keys)) == [None] * 4
    assert windows(config(family, **keys, use_sliding_window=True)) == [None] * 3 + [8]
    types = ["sliding_attention", "full_attention"] * 2
    used = config(family, **keys, use_sliding_window=True, layer_types=types)
    assert windows(used) == [8, None, 8, None]
    unused = config(family, **keys, layer_types=types)
    with pytest.raises(ModelError, match="sliding_window: is not set, and layers ask for it"):
        read(unused)


def gemma3(**changes: object) -> dict[str, object]:
    return config("gemma3", **{"num_hidden_layers": 7, **changes})


def test_gemma3s_pattern_is_in_layer_types_or_a_number_or_six() -> None:
    assert windows(gemma3()) == [8] * 5 + [None, 8]
    assert windows(gemma3(sliding_window_pattern=2)) == [8, None] * 3 + [8]
    types = ["full_attention"] * 6 + ["sliding_attention"]
    assert windows(gemma3(layer_types=types, sliding_window_pattern=2)) == [None] * 6 + [8]


@pytest.mark.parametrize("types", [["full_attention"], "full_attention", [None] * 7, [[]] * 7])
def test_wrong_layer_types_are_named(types: object) -> None:
    with pytest.raises(ModelError, match=r"^layer_types: "):
        read(gemma3(layer_types=types))


def test_gemma3s_layers_have_two_kinds_of_rotary_embedding_in_both_forms() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = gemma3(rope_scaling=scaling, rope_local_base_freq=500)
    new = gemma3(
        rope_theta=None,
        rope_parameters={
            "full_attention": {**scaling, "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500},
        },
    )
    assert read(old) == read(new)
    local, full = read(new).attention[0], read(new).attention[5]
    assert local == AttentionKind(rope(500.0, HEAD_DIM), 8)
    assert full == AttentionKind(rope(50000.0, HEAD_DIM, LinearScaling(factor=8.0)))


def test_gemma3_states_the_scaled_length() -> None:
    assert read(gemma3(rope_scaling={"rope_type": "linear", "factor": 8.0})).max_position == 64


def test_gemma3s_bases_have_their_own_defaults() -> None:
    spec = read(gemma3(rope_theta=None))
    assert spec.attention[0].rope == rope(10_000.0, HEAD_DIM)
    assert spec.attention[5].rope == rope(1_000_000.0, HEAD_DIM)


def test_gemma3s_rotary_settings_are_by_kind_of_layer() -> None:
    with pytest.raises(UnsupportedModel, match=r"^rope_parameters\.rope_theta: only full_att"):
        read(gemma3(rope_parameters={"rope_theta": 5.0}))


def test_gemma3s_scores_are_scaled_by_its_own_number() -> None:
    assert read(gemma3(query_pre_attn_scalar=168)).attention_scale == 168**-0.5
    with pytest.raises(ModelError, match="query_pre_attn_scalar: is missing"):
        read(gemma3(query_pre_attn_scalar=None))
