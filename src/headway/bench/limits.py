"""How fast a model can run on a machine at best: a roofline, from what must be read and computed.

In a step every weight is read once, and the KV of every token that is attended to; products run
at the machine's rate for their dtype, attention at that for float32 where the weights are int8.
Neither can be faster, and to reach both at once is not possible quite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headway.models.spec import DecoderSpec

__all__ = ["Limits", "Rates", "limits"]

_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "int8": 1}


class Rates(Protocol):
    """What was measured of a machine."""

    @property
    def read_bytes_per_s(self) -> float: ...
    @property
    def operations_per_s(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The least seconds that requests of one length take, all at once."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.decode_s


def limits(
    spec: DecoderSpec,
    rates: Rates,
    *,
    dtype: str,
    kv_cache_dtype: str,
    num_prompts: int,
    width: int,
    budget: int,
    input_len: int,
    output_len: int,
) -> Limits | None:
    """Of `num_prompts` prompts of `input_len` tokens and then `output_len` tokens for each, the
    first of which comes with the prompt; None where the machine has no rate for `dtype`, that of
    the weights. At most `width` requests run at once, and a step takes `budget` tokens."""
    products = rates.operations_per_s.get(dtype)
    attention = rates.operations_per_s.get("float32" if dtype == "int8" else dtype)
    if products is None or attention is None:
        return None
    layers, head = _layer_weights(spec), spec.vocab_size * spec.hidden_size
    read = rates.read_bytes_per_s
    weight_s = (layers + head) * _BYTES[dtype] / read
    kv_s = spec.kv_elements_per_token * _BYTES[kv_cache_dtype] / read

    tokens = num_prompts * input_len
    prefill_s = max(
        tokens * 2 * layers / products
        + num_prompts * 2 * head / products
        + num_prompts * _attention(spec, 0, input_len) / attention,
        -(-tokens // budget) * weight_s,
    )
    more = output_len - 1
    rounds = -(-num_prompts // width)
    decode_s = max(
        num_prompts * more * 2 * (layers + head) / products
        + num_prompts * _attention(spec, input_len, input_len + more) / attention,
        rounds * more * weight_s + num_prompts * _seen(spec, input_len, input_len + more) * kv_s,
    )
    return Limits(prefill_s, decode_s)


def _layer_weights(spec: DecoderSpec) -> int:
    """Of all layers' products."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = spec.hidden_size * (2 * queries + 2 * keys)
    return spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)


def _attention(spec: DecoderSpec, begin: int, end: int) -> float:
    """Operations of the scores and of what they weigh, for the tokens at `begin` to `end` - 1."""
    return 4 * spec.num_layers * spec.num_heads * spec.head_dim * _seen(spec, begin, end)


def _seen(spec: DecoderSpec, begin: int, end: int) -> float:
    """Tokens that those at `begin` to `end` - 1 attend to, added up; the mean over the layers,
    of which some may have a window."""
    total = 0
    for kind in spec.attention:
        window = end if kind.window is None else min(kind.window, end)
        full = max(begin, window)  # from this position on the window is full
        total += (full - begin) * (begin + 1 + full) // 2 + (end - full) * window
    return total / spec.num_layers
