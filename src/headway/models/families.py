"""The families of models that run, and how their files say what a `DecoderSpec` says.

A family refuses by name whatever its metadata ask for that a spec cannot express; nothing
is passed over in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headway.errors import ModelError, UnsupportedModel
from headway.models.spec import AttentionKind, DecoderSpec, Rope

__all__ = ["Family", "FAMILIES", "family_of", "read_spec"]

Metadata = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One GGUF architecture: its metadata keys and the names of its tensors."""

    architecture: str
    """`general.architecture`, also the prefix of the family's own keys."""
    model_tensors: Mapping[str, str]
    """Field of `DecoderWeights` → tensor name. `head` is absent where it is tied."""
    layer_tensors: Mapping[str, str]
    """Field of `LayerWeights` → tensor name within `blk.N.`."""
    interleaved_rope: frozenset[str] = frozenset()
    """Fields of `LayerWeights` whose rows GGUF stores for rotary pairs (2i, 2i + 1)."""
    neutral: Mapping[str, object] = field(default_factory=dict)
    """Own keys beyond those the spec takes → the one value that asks for nothing more."""

    def layer_tensor_names(self, layer: int) -> dict[str, str]:
        """Field of `LayerWeights` → full tensor name."""
        return {name: f"blk.{layer}.{tensor}" for name, tensor in self.layer_tensors.items()}

    def required_tensors(self, num_layers: int) -> Iterator[str]:
        """Names of all tensors that the file must hold."""
        yield from (name for key, name in self.model_tensors.items() if key != "head")
        for layer in range(num_layers):
            yield from self.layer_tensor_names(layer).values()


_LLAMA = Family(
    architecture="llama",
    model_tensors={
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
    },
    layer_tensors={
        "attention_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "o": "attn_output.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
    },
    interleaved_rope=frozenset({"q", "k"}),
    neutral={
        "attention.causal": True,
        "attention.sliding_window": 0,
        "expert_count": 0,
        "expert_used_count": 0,
        "rope.scale_linear": 1.0,
        "rope.scaling.factor": 1.0,
        "rope.scaling.type": "none",
        "tensor_data_layout": "Meta AI original pth",
    },
)

FAMILIES: Mapping[str, Family] = {family.architecture: family for family in (_LLAMA,)}

_DEFAULT_ROPE_THETA = 10_000.0  # what GGUF means where `rope.freq_base` is absent
_SPEC_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    }
)


def family_of(metadata: Metadata) -> Family:
    """The family that `general.architecture` names.

    Raises:
        ModelError: the key is missing or no string.
        UnsupportedModel: no such family; the message lists those there are.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"general.architecture must be a string, not {_shown(architecture)}")
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModel(
            f"general.architecture is {architecture!r}; those that work: {', '.join(FAMILIES)}"
        )
    return family


def read_spec(metadata: Metadata) -> DecoderSpec:
    """What the metadata of a GGUF file describe.

    Raises:
        ModelError: a key is missing, mistyped or contradicts another; the message names it.
        UnsupportedModel: the model asks for something that a `DecoderSpec` cannot say.
    """
    family = family_of(metadata)
    own = _Keys(metadata, f"{family.architecture}.")
    own.refuse_unknown(family.neutral)
    hidden_size = own.count("embedding_length")
    num_heads = own.count("attention.head_count")
    num_kv_heads = own.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise own.error(
            "attention.head_count_kv", f"{num_kv_heads} does not divide head_count {num_heads}"
        )
    head_dim = _head_dim(own, hidden_size, num_heads)
    theta = own.positive("rope.freq_base", _DEFAULT_ROPE_THETA)
    pairs = head_dim // 2
    kind = AttentionKind(Rope(tuple(theta ** (-i / pairs) for i in range(pairs))))
    return DecoderSpec(
        architecture=family.architecture,
        attention=(kind,) * own.count("block_count"),
        hidden_size=hidden_size,
        intermediate_size=own.count("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(own, metadata),
        max_position=own.count("context_length"),
        rms_norm_eps=own.positive("attention.layer_norm_rms_epsilon"),
        attention_scale=head_dim**-0.5,
    )


class _Keys:
    """Typed look-ups among the keys with one prefix."""

    def __init__(self, metadata: Metadata, prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self._prefix}{key}: {problem}")

    def unsupported(self, key: str, problem: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._prefix}{key}: {problem}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number ≥ 1."""
        value = self._get(key, default)
        if isinstance(value, tuple):
            raise self.unsupported(key, "has a value per layer; one for all layers is needed")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, f"must be a whole number from 1, not {_shown(value)}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self._get(key, default)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise self.error(key, f"must be a finite float above 0, not {_shown(value)}")
        return value

    def refuse_unknown(self, neutral: Mapping[str, object]) -> None:
        """Raises at a key that the spec does not take, unless its value asks for nothing."""
        for name, value in self._metadata.items():
            key = name.removeprefix(self._prefix)
            if key == name or key in _SPEC_KEYS:
                continue
            if key not in neutral:
                raise self.unsupported(key, f"{_shown(value)} is not supported")
            if value != neutral[key]:
                raise self.unsupported(
                    key, f"{_shown(value)} is not supported (only {neutral[key]!r})"
                )

    def _get(self, key: str, default: object) -> object:
        value = self._metadata.get(self._prefix + key, default)
        if value is None:
            raise self.error(key, "is missing from the metadata")
        return value


def _head_dim(own: _Keys, hidden_size: int, num_heads: int) -> int:
    head_dim = own.count("attention.key_length", hidden_size // num_heads or None)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.count(key, head_dim) != head_dim:
            raise own.unsupported(
                key, f"{own.count(key)} is not the head's size ({head_dim}), which is needed"
            )
    if head_dim % 2:
        raise own.unsupported("attention.key_length", f"the head's size {head_dim} is odd")
    return head_dim


def _vocab_size(own: _Keys, metadata: Metadata) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, tuple) or not tokens:
        raise ModelError(f"tokenizer.ggml.tokens must be an array, not {_shown(tokens)}")
    vocab_size = own.count("vocab_size", len(tokens))
    if vocab_size != len(tokens):
        raise own.error(
            "vocab_size", f"is {vocab_size}, and tokenizer.ggml.tokens holds {len(tokens)}"
        )
    return vocab_size


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, tuple):
        return f"an array of {len(value)}"
    return repr(value)
