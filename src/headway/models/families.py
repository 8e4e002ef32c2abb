"""The families of models that run: what sets each apart, and what its files call its tensors.

A family is what a `DecoderSpec` can say of it and one table of names for each file format.
How its numbers are read is in `gguf_spec` and `config_spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

__all__ = ["FAMILIES", "Family", "Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a file calls a decoder's tensors, and how it stores them."""

    model: Mapping[str, str]
    """Field of `DecoderWeights` → tensor name."""
    layer: Mapping[str, str]
    """Field of `LayerWeights` → tensor name, after `layer_prefix`."""
    layer_prefix: str
    """With `{}` where the layer's number is."""
    interleaved_rope: bool = False
    """Rows of q and k lie for rotary pairs (2i, 2i + 1) instead of (i, i + head_dim/2)."""
    norm_offset: float = 0.0
    """What the weights of all norms lack in the file."""
    no_weights: str | None = None
    """Pattern of names of tensors that are no weights, being in the spec in another form."""

    def layer_name(self, layer: int, field: str) -> str:
        return self.layer_prefix.format(layer) + self.layer[field]

    def is_no_weight(self, name: str) -> bool:
        return self.no_weights is not None and fnmatchcase(name, self.no_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of decoder. The traits are those of `DecoderSpec`."""

    name: str
    """GGUF's `general.architecture`, unless it has none of its own."""
    class_name: str
    """Of the model in Hugging Face's `architectures`."""
    gguf: Layout | None
    """None: in GGUF it goes by the name of another family."""
    hugging_face: Layout
    activation: Literal["silu", "gelu_tanh"] = "silu"
    scaled_embedding: bool = False
    """Tokens are embedded times the square root of the hidden size."""
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False


_GGUF = Layout(
    model={
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
    },
    layer_prefix="blk.{}.",
    layer={
        "attention_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "o": "attn_output.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "attention_post_norm": "post_attention_norm.weight",
        "mlp_post_norm": "post_ffw_norm.weight",
    },
)
_GGUF_LLAMA = Layout(
    model=_GGUF.model,
    layer_prefix=_GGUF.layer_prefix,
    layer=_GGUF.layer,
    interleaved_rope=True,
    no_weights="rope_freqs.weight",
)
_HF = Layout(
    model={
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    },
    layer_prefix="model.layers.{}.",
    layer={
        "attention_norm": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "k": "self_attn.k_proj.weight",
        "v": "self_attn.v_proj.weight",
        "o": "self_attn.o_proj.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
        "q_bias": "self_attn.q_proj.bias",
        "k_bias": "self_attn.k_proj.bias",
        "v_bias": "self_attn.v_proj.bias",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
    },
    no_weights="model.layers.*.self_attn.rotary_emb.inv_freq",  # in some from before 2024
)
_HF_GEMMA = Layout(
    model=_HF.model,
    layer_prefix=_HF.layer_prefix,
    layer={
        **_HF.layer,
        "attention_post_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_post_norm": "post_feedforward_layernorm.weight",
    },
    norm_offset=1.0,
)

FAMILIES: tuple[Family, ...] = (
    Family(
        name="llama",
        class_name="LlamaForCausalLM",
        gguf=_GGUF_LLAMA,
        hugging_face=_HF,
    ),
    Family(
        name="mistral",
        class_name="MistralForCausalLM",
        gguf=None,
        hugging_face=_HF,
    ),
    Family(
        name="qwen2",
        class_name="Qwen2ForCausalLM",
        gguf=_GGUF,
        hugging_face=_HF,
        qkv_bias=True,
    ),
    Family(
        name="qwen3",
        class_name="Qwen3ForCausalLM",
        gguf=_GGUF,
        hugging_face=_HF,
        qk_norm=True,
    ),
    Family(
        name="gemma3",
        class_name="Gemma3ForCausalLM",
        gguf=_GGUF,
        hugging_face=_HF_GEMMA,
        activation="gelu_tanh",
        scaled_embedding=True,
        qk_norm=True,
        post_norms=True,
    ),
)
