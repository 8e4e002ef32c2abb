"""From the metadata of a GGUF file to a `DecoderSpec`.

The keys mean what llama.cpp takes them to mean. A key of the family's own that is not read
here must have the one value that asks for nothing; nothing is passed over in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headway.errors import ModelError, UnsupportedModel
from headway.models.families import FAMILIES, Family
from headway.models.fields import Fields, shown
from headway.models.rope import LinearScaling, Scaling, YarnScaling, rope
from headway.models.sizes import Sizes, make_spec, read_sizes, stretched
from headway.models.spec import AttentionKind, DecoderSpec

__all__ = ["gguf_family", "read_gguf_spec"]

Metadata = Mapping[str, object]

_FAMILIES = {family.name: family for family in FAMILIES if family.gguf is not None}
_SIZES = {
    "num_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_READ = frozenset(
    {
        *_SIZES.values(),
        "attention.scale",
        "attention.value_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",  # the name of `rope.scaling.factor` in old files
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "vocab_size",
    }
)
_WINDOW_KEYS = frozenset(
    {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"}
)
_READ_BESIDE = {"gemma3": _WINDOW_KEYS}
_INFORMATION = frozenset({"rope.scaling.finetuned"})
_NEUTRAL: Mapping[str, object] = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "tensor_data_layout": "Meta AI original pth",
}
_DEFAULT_THETA = 10_000.0
_GEMMA3_PATTERN = 6
_GEMMA3_27B_LAYERS = 62


def gguf_family(metadata: Metadata) -> Family:
    """The family that `general.architecture` names.

    Raises:
        ModelError: the key is missing or no string.
        UnsupportedModel: no such family; the message lists those there are.
    """
    architecture = Fields(metadata).text("general.architecture")
    if architecture not in _FAMILIES:
        raise UnsupportedModel(
            f"general.architecture is {shown(architecture)}; those that work in GGUF: "
            f"{', '.join(_FAMILIES)}"
        )
    return _FAMILIES[architecture]


def read_gguf_spec(
    metadata: Metadata, *, num_tensors: int, rope_divisors: Sequence[float] | None = None
) -> DecoderSpec:
    """What the metadata of a file with `num_tensors` tensors describe.

    `rope_divisors` are the values of the tensor `rope_freqs.weight`, where the file has it.

    Raises:
        ModelError: a key is missing, mistyped or contradicts another; the message names it.
        UnsupportedModel: the model asks for something that a `DecoderSpec` cannot say.
    """
    family = gguf_family(metadata)
    own = Fields(metadata, f"{family.name}.")
    _refuse_unknown(own, _READ | _READ_BESIDE.get(family.name, frozenset()))
    sizes = read_sizes(own, _SIZES, num_tensors=num_tensors)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.count(key, sizes.head_dim) != sizes.head_dim:
            raise own.unsupported(
                key, f"{own.count(key)} is not the head's size ({sizes.head_dim}), which is needed"
            )
    return make_spec(
        family,
        replace(sizes, max_position=_max_position(own, sizes)),
        attention=_attention(own, sizes, rope_divisors),
        vocab_size=_vocab_size(own, metadata),
        attention_scale=own.number("attention.scale", _attention_scale(family, sizes)),
    )


def _refuse_unknown(own: Fields, read: frozenset[str]) -> None:
    for key in own.names():
        if key in read or key in _INFORMATION:
            continue
        value = own.get(key)
        if key not in _NEUTRAL:
            raise own.unsupported(key, f"{shown(value)} is not supported")
        if value != _NEUTRAL[key]:
            raise own.unsupported(key, f"{shown(value)} is not supported (only {_NEUTRAL[key]!r})")


def _attention(
    own: Fields, sizes: Sizes, divisors: Sequence[float] | None
) -> tuple[AttentionKind, ...]:
    if divisors is not None and len(divisors) != sizes.head_dim // 2:
        raise ModelError(
            f"tensor 'rope_freqs.weight': holds {len(divisors)} values, and the head's size "
            f"{sizes.head_dim} needs {sizes.head_dim // 2}"
        )
    theta = own.number("rope.freq_base", _DEFAULT_THETA)
    full = AttentionKind(rope(theta, sizes.head_dim, _scaling(own, theta, sizes), divisors))
    window = own.count("attention.sliding_window", 0, at_least=0)
    if window == 0:  # as it is for the families that have none
        return (full,) * sizes.num_layers
    local = AttentionKind(
        rope(own.number("rope.freq_base_swa", _DEFAULT_THETA), sizes.head_dim),
        window=window,
    )
    # One layer in so many sees everything, the last of each round.
    pattern = own.count("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    return tuple(local if (layer + 1) % pattern else full for layer in range(sizes.num_layers))


def _scaling(own: Fields, theta: float, sizes: Sizes) -> Scaling | None:
    kind = own.text("rope.scaling.type", "linear")
    factor = _factor(own)
    attention_factor = own.number("rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        return YarnScaling(
            theta=theta,
            factor=factor,
            original_positions=own.count(
                "rope.scaling.original_context_length", sizes.max_position
            ),
            magnitude=attention_factor * (1.0 + 0.1 * math.log(factor)),
            beta_fast=own.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=own.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    if attention_factor != 1.0:
        raise own.unsupported("rope.scaling.attn_factor", "is supported for yarn alone")
    if kind not in ("none", "linear"):
        raise own.unsupported(
            "rope.scaling.type", f"{shown(kind)} is not supported; none, linear and yarn are"
        )
    return LinearScaling(factor=factor) if kind == "linear" and factor != 1.0 else None


def _factor(own: Fields) -> float:
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if key in own and own.get(key) != 0:  # 0 is as absent
            return own.number(key, at_least=1.0)
    return 1.0


def _max_position(own: Fields, sizes: Sizes) -> int:
    """Most files state the scaled length; one that does not gets what its YaRN is made for."""
    key = "rope.scaling.original_context_length"
    if own.text("rope.scaling.type", "linear") != "yarn" or key not in own:
        return sizes.max_position
    return stretched(sizes.max_position, own.count(key), _factor(own))


def _attention_scale(family: Family, sizes: Sizes) -> float:
    # GGUF does not say it; of all Gemma 3 only the 27B divides by its heads' share of the width.
    if family.name == "gemma3" and sizes.num_layers == _GEMMA3_27B_LAYERS:
        return float((sizes.hidden_size // sizes.num_heads) ** -0.5)
    return float(sizes.head_dim**-0.5)


def _vocab_size(own: Fields, metadata: Metadata) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, tuple) or not tokens:
        raise ModelError(f"tokenizer.ggml.tokens must be an array, not {shown(tokens)}")
    vocab_size = own.count("vocab_size", len(tokens))
    if vocab_size != len(tokens):
        raise own.error(
            "vocab_size", f"is {vocab_size}, and tokenizer.ggml.tokens holds {len(tokens)}"
        )
    return vocab_size
