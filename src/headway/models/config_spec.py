"""From a Hugging Face `config.json` to a `DecoderSpec`.

What is read is what Transformers' class of that name reads; other keys say nothing to it and
are left alone. Both forms of the rotary settings are understood: `rope_theta` and
`rope_scaling`, and since Transformers 5 `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from headway.errors import UnsupportedModel
from headway.models.families import FAMILIES, Family
from headway.models.fields import Fields, shown
from headway.models.rope import LinearScaling, Llama3Scaling, Scaling, YarnScaling, rope
from headway.models.sizes import Sizes, make_spec, read_sizes, stretched
from headway.models.spec import AttentionKind, DecoderSpec, Rope

__all__ = ["config_family", "is_tied", "read_config_spec"]

Config = Mapping[str, object]

_FAMILIES = {family.class_name: family for family in FAMILIES}
_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_position": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_SILU = {"hidden_act": ("silu",)}
_ALLOWED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "llama": {**_SILU, "attention_bias": (False,), "mlp_bias": (False,), "layer_types": ()},
    "mistral": {**_SILU, "layer_types": ()},
    "qwen2": _SILU,
    "qwen3": {**_SILU, "attention_bias": (False,)},
    "gemma3": {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False,),
        "attn_logit_softcapping": (0,),
        "final_logit_softcapping": (0,),
        "use_bidirectional_attention": (False,),
    },
}
"""Of each family the keys for which only these values work, beside null and being absent."""

_DEFAULT_THETA = 10_000.0
_GEMMA3_THETA = 1_000_000.0
_GEMMA3_PATTERN = 6


def config_family(config: Config) -> Family:
    """The family that `architectures` names.

    Raises:
        ModelError: the key is missing or no list of strings.
        UnsupportedModel: no such family; the message lists those there are.
    """
    classes = config.get("architectures")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise Fields(config).error(
            "architectures", f"must be a list of strings, not {shown(classes)}"
        )
    family = next((_FAMILIES[name] for name in classes if name in _FAMILIES), None)
    if family is None:
        raise UnsupportedModel(
            f"architectures is {shown(', '.join(classes))}; those that work as safetensors: "
            f"{', '.join(_FAMILIES)}"
        )
    return family


def is_tied(config: Config) -> bool:
    """Whether the embedding serves as the head where the checkpoint has none."""
    default = config_family(config).name == "gemma3"
    return Fields(config).flag("tie_word_embeddings", default)


def read_config_spec(config: Config, *, num_tensors: int) -> DecoderSpec:
    """What the configuration of a checkpoint with `num_tensors` tensors describes.

    Raises:
        ModelError: a key is missing, mistyped or contradicts another; the message names it.
        UnsupportedModel: the model asks for something that a `DecoderSpec` cannot say.
    """
    family = config_family(config)
    fields = Fields(config)
    _refuse(fields, family)
    sizes = read_sizes(fields, _SIZES, num_tensors=num_tensors)
    attention = _attention(fields, family, sizes)
    scale = float(sizes.head_dim)
    if family.name == "gemma3":
        scale = fields.number("query_pre_attn_scalar")
    return make_spec(
        family,
        replace(sizes, max_position=_max_position(fields, family, sizes)),
        attention=attention,
        vocab_size=fields.count("vocab_size"),
        attention_scale=scale**-0.5,
    )


def _max_position(fields: Fields, family: Family, sizes: Sizes) -> int:
    """The stated length is the unscaled one where the scaling is linear or YaRN, as vLLM has it;
    Gemma 3 states the scaled one."""
    own = _own_rope(fields)
    if family.name == "gemma3" or _rope_type(own) not in ("linear", "yarn"):
        return sizes.max_position
    return stretched(sizes.max_position, _original(fields, own, sizes), own.number("factor"))


def _refuse(fields: Fields, family: Family) -> None:
    quantised = fields.section("quantization_config")
    if quantised.names():
        raise fields.unsupported(
            "quantization_config",
            f"{shown(quantised.get('quant_method'))} checkpoints do not work; what works is "
            "float32, float16 or bfloat16, or the model as GGUF",
        )
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.unsupported("partial_rotary_factor", "heads that turn in part do not work")
    for key, allowed in _ALLOWED[family.name].items():
        value = fields.get(key)
        if value is not None and value not in allowed:
            only = ", ".join(["null", *(repr(one) for one in allowed)])
            raise fields.unsupported(key, f"{shown(value)} is not supported (only {only})")


def _attention(fields: Fields, family: Family, sizes: Sizes) -> tuple[AttentionKind, ...]:
    windows = _windows(fields, family, sizes.num_layers)
    full, sliding = _ropes(fields, family, sizes)
    kinds = {
        window: AttentionKind(full if window is None else sliding, window)
        for window in set(windows)
    }
    return tuple(kinds[window] for window in windows)


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Of each layer; None where it sees everything."""
    window = _window(fields, family)
    if family.name in ("llama", "mistral"):
        return (window,) * num_layers
    if "layer_types" in fields:
        slides = _sliding_layers(fields, num_layers)
    elif family.name == "gemma3":
        pattern = fields.count("sliding_window_pattern", _GEMMA3_PATTERN)
        slides = [(layer + 1) % pattern > 0 for layer in range(num_layers)]
    else:
        first = num_layers if window is None else fields.count("max_window_layers", at_least=0)
        slides = [layer >= first for layer in range(num_layers)]
    if window is None and any(slides):
        raise fields.error("sliding_window", "is not set, and layers ask for it")
    return tuple(window if slide else None for slide in slides)


def _window(fields: Fields, family: Family) -> int | None:
    """Of the layers that have one."""
    if family.name == "llama":
        return None
    if family.name in ("qwen2", "qwen3") and not fields.flag("use_sliding_window", False):
        return None
    if "sliding_window" not in fields.names():  # Transformers would take it for 4096
        raise fields.error("sliding_window", "is missing; null means none")
    return fields.count("sliding_window") if "sliding_window" in fields else None


def _sliding_layers(fields: Fields, num_layers: int) -> list[bool]:
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.error("layer_types", f"must be {num_layers} strings, not {shown(kinds)}")
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise fields.unsupported(
                "layer_types", f"{shown(kind)} is not supported; {_FULL} and {_SLIDING} are"
            )
    return [kind == _SLIDING for kind in kinds]


def _ropes(fields: Fields, family: Family, sizes: Sizes) -> tuple[Rope, Rope]:
    """Of the layers that see everything, and of those with a window."""
    parameters = fields.section("rope_parameters")
    if parameters.names() and fields.section("rope_scaling").names():
        raise fields.error("rope_scaling", "stands beside rope_parameters, which replaces it")
    if family.name != "gemma3":
        one = _rope(fields, _own_rope(fields), sizes, fields.number("rope_theta", _DEFAULT_THETA))
        return one, one
    for name in parameters.names():
        if name not in (_FULL, _SLIDING):
            raise parameters.unsupported(name, f"only {_FULL} and {_SLIDING} are supported here")
    own = parameters.section(_FULL) if parameters.names() else fields.section("rope_scaling")
    return (
        _rope(fields, own, sizes, fields.number("rope_theta", _GEMMA3_THETA)),
        _rope(
            fields,
            parameters.section(_SLIDING),
            sizes,
            fields.number("rope_local_base_freq", _DEFAULT_THETA),
        ),
    )


def _own_rope(fields: Fields) -> Fields:
    """The settings of the rotary embedding where all layers have the same."""
    parameters = fields.section("rope_parameters")
    return parameters if parameters.names() else fields.section("rope_scaling")


def _rope_type(own: Fields) -> str:
    return own.text("rope_type", own.text("type", "default"))


def _original(fields: Fields, own: Fields, sizes: Sizes) -> int:
    """The context length before scaling."""
    key = "original_max_position_embeddings"
    return fields.count(key, own.count(key, sizes.max_position))


def _rope(fields: Fields, own: Fields, sizes: Sizes, theta: float) -> Rope:
    """`own` are the settings of this rotary embedding alone; `theta` is what else it would be."""
    kind = _rope_type(own)
    if kind not in _SCALING_KEYS:
        raise own.unsupported(
            "rope_type",
            f"{shown(kind)} is not supported; those that work: {', '.join(_SCALING_KEYS)}",
        )
    for key in own.names():
        if key in own and key not in _ROPE_KEYS | _SCALING_KEYS[kind]:
            raise own.unsupported(key, f"is not supported for the rope type {kind}")
    if own.number("partial_rotary_factor", 1.0) != 1.0:
        raise own.unsupported("partial_rotary_factor", "heads that turn in part do not work")
    theta = own.number("rope_theta", theta)
    return rope(theta, sizes.head_dim, _scaling(kind, theta, fields, own, sizes))


_ROPE_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_SCALING_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "factor",
            "finetuned",  # says how the model was made
            "mscale",
            "mscale_all_dim",
            "original_max_position_embeddings",
            "truncate",
        }
    ),
}


def _scaling(kind: str, theta: float, fields: Fields, own: Fields, sizes: Sizes) -> Scaling | None:
    if kind == "default":
        return None
    factor = own.number("factor", at_least=1.0)
    if kind == "linear":
        return LinearScaling(factor=factor)
    original = _original(fields, own, sizes)
    if kind == "llama3":
        low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
        if high <= low:
            raise own.error("high_freq_factor", f"{high:g} must be above low_freq_factor {low:g}")
        return Llama3Scaling(
            factor=factor, low_freq_factor=low, high_freq_factor=high, original_positions=original
        )
    return YarnScaling(
        theta=theta,
        factor=factor,
        original_positions=original,
        magnitude=own.number("attention_factor", _yarn_magnitude(own, factor)),
        beta_fast=own.number("beta_fast", 32.0),
        beta_slow=own.number("beta_slow", 1.0),
        truncate=own.flag("truncate", True),
    )


def _yarn_magnitude(own: Fields, factor: float) -> float:
    if "mscale" in own and "mscale_all_dim" in own:
        scales = (own.number("mscale"), own.number("mscale_all_dim"))
    else:
        scales = (1.0, 0.0)
    over, under = (1.0 + 0.1 * scale * math.log(factor) for scale in scales)
    return over / under
