"""The sizes that every decoder has, read and bounded alike whatever a file calls them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.models.families import Family
from headway.models.fields import LARGEST_COUNT, Fields
from headway.models.spec import AttentionKind, DecoderSpec

__all__ = ["MAX_HEAD_DIM", "Sizes", "make_spec", "read_sizes", "stretched"]

MAX_HEAD_DIM = 1024
"""The widest heads there are have 512; more would only serve to make a spec that is huge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """As in `DecoderSpec`."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float


def read_sizes(fields: Fields, names: Mapping[str, str], *, num_tensors: int) -> Sizes:
    """`names` maps each field of `Sizes` to what the file calls it.

    Absent KV heads are as many as heads, an absent size of a head is its share of the width:
    if the file means something else, the tensors are of other shapes and it is refused.
    Each layer needs tensors, so a file of `num_tensors` holds no more layers than that; this
    is checked here, before anything of that size is made.

    Raises:
        ModelError: a field is missing, mistyped or contradicts another; the message names it.
        UnsupportedModel: a head is of a size that does not work.
    """
    num_layers = fields.count(names["num_layers"])
    if num_layers > num_tensors:
        raise fields.error(
            names["num_layers"], f"{num_layers} layers cannot be in {num_tensors} tensors"
        )
    hidden_size = fields.count(names["hidden_size"])
    num_heads = fields.count(names["num_heads"])
    num_kv_heads = fields.count(names["num_kv_heads"], num_heads)
    if num_heads % num_kv_heads:
        raise fields.error(
            names["num_kv_heads"],
            f"{num_kv_heads} does not divide {names['num_heads']} {num_heads}",
        )
    head_dim = fields.count(names["head_dim"], hidden_size // num_heads or None)
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise fields.unsupported(
            names["head_dim"],
            f"the head's size is {head_dim}; even ones up to {MAX_HEAD_DIM} work",
        )
    return Sizes(
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.count(names["intermediate_size"]),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=fields.count(names["max_position"]),
        rms_norm_eps=fields.number(names["rms_norm_eps"]),
    )


def stretched(stated: int, original: int, factor: float) -> int:
    """The context length of a model that states one, and stretches another by `factor`."""
    return max(stated, min(round(original * factor), LARGEST_COUNT))


def make_spec(
    family: Family,
    sizes: Sizes,
    *,
    attention: tuple[AttentionKind, ...],
    vocab_size: int,
    attention_scale: float,
) -> DecoderSpec:
    return DecoderSpec(
        architecture=family.name,
        attention=attention,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=vocab_size,
        max_position=sizes.max_position,
        rms_norm_eps=sizes.rms_norm_eps,
        attention_scale=attention_scale,
        activation=family.activation,
        embedding_scale=math.sqrt(sizes.hidden_size) if family.scaled_embedding else 1.0,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
    )
