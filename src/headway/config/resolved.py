"""The options in force, and how they follow from what was asked, the model and the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from headway.config.args import DTYPE_BYTES, EngineArgs
from headway.config.parse import parse_bytes, parse_weights
from headway.config.recipes import Recipe
from headway.config.speculation import resolve_speculation
from headway.errors import InvalidConfig

__all__ = ["EngineConfig", "ModelLimits", "kv_token_bytes", "resolve", "weight_bytes"]

_BLOCK_SIZES = (16, 32)
_KV_SHARE = 0.4
_DEFAULT_BUDGET = MappingProxyType({"cpu": 256, "cuda": 2048})
_DEFAULT_SWAP_GIB = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the options depend on in the model and the machine."""

    max_position: int
    """Context length of the model, tokens."""
    num_parameters: int
    kv_elements_per_token: int
    """Numbers that the KV of one token is, over all layers."""
    available_bytes: int
    """Memory available on the device before the weights are loaded."""
    host_bytes: int | None = None
    """Memory available on the host, for the swap space; None: the device is the host."""
    num_channels: int = 0
    """Rows of all matrices of weights: in int8 each has a scale."""
    kv_vectors_per_token: int = 0
    """K and V vectors of one token, over all layers and heads: in int8 each has a scale."""
    kernels: str | None = None
    """Instruction set of the C++ kernels that run the model on the CPU; None: they do not."""
    why_no_kernels: str = "this engine has none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The options in force. Fields as in `EngineArgs`, all of them decided."""

    recipe: str | None
    executor: str
    device: str
    kernels: str | None
    """Instruction set of the C++ kernels in use."""
    dtype: str
    kv_cache_dtype: str
    num_threads: int | None
    probe: str
    max_model_len: int
    block_size: int
    num_kv_blocks: int
    kv_cache_bytes: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduling_policy: str
    priority_aging: float
    preempt_for_priority: bool
    fair_weights: Mapping[str, float]
    fair_input_weight: float
    fair_output_weight: float
    aging_tokens_per_s: float
    default_deadline_s: float
    max_skip_ahead: int
    in_batch_prefix_sharing: bool
    preemption_mode: Literal["recompute", "swap", "auto"]
    num_swap_blocks: int
    max_preemptions: int
    queue_timeout_s: float | None
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    watermark: float
    reserve_full_prompt: bool
    async_scheduling: bool
    speculative_model: str | None
    num_speculative_tokens: int
    """Most drafts of a request in a step, whoever makes them; 0: there are none."""
    prompt_lookup_min: int
    prompt_lookup_max: int
    max_logprobs: int
    generation_config: str
    seed: int | None
    record: str | None
    record_content: bool
    debug_invariants: bool


def resolve(
    args: EngineArgs, model: ModelLimits, *, device: str, draft: ModelLimits | None = None
) -> EngineConfig:
    """Decides every option, or raises InvalidConfig naming the one that cannot be honoured.

    `device`: `cpu` or `cuda`, what `args.device` came to on this machine. `draft`: of the
    `speculative_model`; it takes its part of the memory.
    """
    _check_types(args)
    _check_values(args)
    _check_policy_options(args)
    tuning = args.tuning
    _check_chunking(args, tuning)
    kernels, dtype, kv_dtype = _precisions(args, model, device)
    block_bytes = tuning.block_size * kv_token_bytes(model, kv_dtype)
    both_weights = weight_bytes(model, dtype)
    pair_bytes = block_bytes
    if draft is not None:
        pair_bytes += tuning.block_size * kv_token_bytes(draft, kv_dtype)
        both_weights += weight_bytes(draft, dtype)
    num_blocks = _num_blocks(args, tuning, model, pair_bytes, both_weights)
    max_model_len = _max_model_len(args, model, num_blocks * tuning.block_size)
    decided: dict[str, Any] = {
        **tuning.options(),
        "device": device,
        "kernels": kernels,
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "max_model_len": max_model_len,
        "num_kv_blocks": num_blocks,
        "kv_cache_bytes": num_blocks * pair_bytes,
        "num_swap_blocks": _swap_blocks(
            args,
            block_bytes,
            model.available_bytes - both_weights - num_blocks * pair_bytes
            if model.host_bytes is None
            else model.host_bytes,
        ),
        "fair_weights": parse_weights("fair_weights", args.fair_weights),
        "max_num_batched_tokens": _budget(args, tuning, device, max_model_len),
        **resolve_speculation(args),
    }
    names = [item.name for item in fields(EngineConfig)]
    as_asked = {name: getattr(args, name) for name in names if name not in decided}
    return EngineConfig(**decided, **as_asked)


def _precisions(args: EngineArgs, model: ModelLimits, device: str) -> tuple[str | None, str, str]:
    """Instruction set of the kernels in use, dtype, and dtype of the KV cache."""
    kernels = model.kernels if args.executor == "torch" and device == "cpu" else None
    dtype = _resolve_dtype(args, device, kernels)
    kv_dtype = dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    if kernels is None:
        _check_without_kernels(args, dtype, kv_dtype, _why_no_kernels(args, model, device))
    if args.executor == "reference":
        if {dtype, kv_dtype} != {"float32"} or device != "cpu":
            raise InvalidConfig("executor", "reference computes in float32 on the CPU alone")
        if args.num_threads is not None:
            raise InvalidConfig("num_threads", "is for the torch executor; NumPy has its own")
    return kernels, dtype, kv_dtype


_AT_LEAST = MappingProxyType(
    {
        "num_threads": 1,
        "max_model_len": 2,
        "num_kv_blocks": 1,
        "max_num_batched_tokens": 1,
        "max_num_seqs": 1,
        "speculative_ngram": 1,
        "num_speculative_tokens": 1,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 1,
        "long_prefill_token_threshold": 0,
        "max_num_queued_reqs": 1,
        "max_num_queued_tokens": 1,
        "max_logprobs": -1,
        "max_skip_ahead": 0,
        "max_preemptions": 0,
        "priority_aging": 0,
        "fair_input_weight": 0,
        "fair_output_weight": 0,
        "aging_tokens_per_s": 0,
        "default_deadline_s": 0,
        "queue_timeout_s": 0,
        "swap_space": 0,
    }
)


_OF_POLICIES = MappingProxyType(
    {
        "priority_aging": ("priority",),
        "preempt_for_priority": ("priority",),
        "fair_weights": ("fair",),
        "fair_input_weight": ("fair",),
        "fair_output_weight": ("fair",),
        "aging_tokens_per_s": ("sjf", "lpm"),
        "default_deadline_s": ("deadline",),
    }
)
"""Options that mean something under these policies alone."""


_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,), "None": (type(None),)}
)
_MOST_THREADS = 1024


def _check_types(args: EngineArgs) -> None:
    """An option's value has one of the types that it is annotated with; a bool is no int."""
    for item in fields(args):
        value, kinds = getattr(args, item.name), str(item.type).split(" | ")
        if not any(type(value) in _TYPES[kind] for kind in kinds):
            raise InvalidConfig(item.name, f"must be {' or '.join(kinds)}, not {value!r}")


def _check_policy_options(args: EngineArgs) -> None:
    """Under another policy such an option would do nothing."""
    for item in fields(args):
        policies = _OF_POLICIES.get(item.name, (args.scheduling_policy,))
        if args.scheduling_policy not in policies and getattr(args, item.name) != item.default:
            raise InvalidConfig(item.name, f"needs scheduling_policy {' or '.join(policies)}")


def _check_values(args: EngineArgs) -> None:
    for item in fields(args):
        value, choices = getattr(args, item.name), item.metadata["choices"]
        if choices and value is not None and value not in choices:
            raise InvalidConfig(item.name, f"must be one of {', '.join(choices)}, not {value!r}")
    for name, low in _AT_LEAST.items():
        value = getattr(args, name)
        if value is not None and not (low <= value < math.inf):
            raise InvalidConfig(name, f"must be at least {low}, not {value}")
    if args.num_threads is not None and args.num_threads > _MOST_THREADS:
        raise InvalidConfig("num_threads", f"must be at most {_MOST_THREADS}")
    if args.block_size is not None and args.block_size not in _BLOCK_SIZES:
        raise InvalidConfig("block_size", f"must be 16 or 32, not {args.block_size!r}")
    if not 0 <= args.watermark < 1:
        raise InvalidConfig("watermark", f"must be in [0, 1), not {args.watermark!r}")
    if args.record_content and args.record is None:
        raise InvalidConfig("record_content", "needs record")


def _check_chunking(args: EngineArgs, tuning: Recipe) -> None:
    name = "long_prefill_token_threshold"
    if tuning.long_prefill_token_threshold and not args.enable_chunked_prefill:
        shown = _shown(args, name, tuning.long_prefill_token_threshold)
        raise InvalidConfig(name, f"{shown} needs enable_chunked_prefill; 0 does not")


def _shown(args: EngineArgs, name: str, value: int) -> str:
    """An option's value, and the recipe where that is what sets it."""
    of_recipe = args.recipe is not None and getattr(args, name) is None
    return f"{value} (recipe {args.recipe})" if of_recipe else f"{value}"


def weight_bytes(model: ModelLimits, dtype: str) -> int:
    """Bytes of the weights; an embedding that is the head too is held once."""
    scales = 4 * model.num_channels if dtype == "int8" else 0
    return model.num_parameters * DTYPE_BYTES[dtype] + scales


def kv_token_bytes(model: ModelLimits, dtype: str) -> int:
    """Bytes of one token's KV, over all layers."""
    scales = 4 * model.kv_vectors_per_token if dtype == "int8" else 0
    return model.kv_elements_per_token * DTYPE_BYTES[dtype] + scales


def _resolve_dtype(args: EngineArgs, device: str, kernels: str | None) -> str:
    if args.dtype != "auto":
        return args.dtype
    if kernels is not None:
        return "int8"
    return "bfloat16" if device == "cuda" and args.executor != "reference" else "float32"


def _check_without_kernels(args: EngineArgs, dtype: str, kv_dtype: str, reason: str) -> None:
    for name, value in (("dtype", dtype), ("kv_cache_dtype", kv_dtype)):
        if value == "int8":
            raise InvalidConfig(name, f"int8 needs the C++ kernels: {reason}")
    if args.probe == "full":
        raise InvalidConfig("probe", f"full is for the C++ kernels: {reason}")


def _why_no_kernels(args: EngineArgs, model: ModelLimits, device: str) -> str:
    if device != "cpu":
        return f"they run on the CPU, not on {device}"
    return model.why_no_kernels if args.executor == "torch" else "executor torch has them"


def _num_blocks(
    args: EngineArgs, tuning: Recipe, model: ModelLimits, block_bytes: int, of_weights: int
) -> int:
    spare_bytes = model.available_bytes - of_weights
    memory = f"{model.available_bytes:,} bytes are available and the weights take {of_weights:,}"
    asked = _blocks_asked_for(args, tuning.block_size, block_bytes)
    if asked is not None:
        name, num_blocks = asked
        if num_blocks * block_bytes > spare_bytes:
            raise InvalidConfig(name, f"is {num_blocks * block_bytes:,} bytes, but {memory}")
        return num_blocks
    share = int(spare_bytes * _KV_SHARE)
    if share < block_bytes:
        raise InvalidConfig("kv_cache_memory", f"{memory}: nothing is left for the KV cache")
    longest = min(args.max_model_len or model.max_position, model.max_position)
    most = tuning.max_num_seqs * -(-longest // tuning.block_size)
    return min(share // block_bytes, most)


def _blocks_asked_for(
    args: EngineArgs, block_size: int, block_bytes: int
) -> tuple[str, int] | None:
    """The option that asks for a number of KV blocks, and the number."""
    if args.num_kv_blocks is not None:
        if args.kv_cache_memory is not None:
            raise InvalidConfig("num_kv_blocks", "and kv_cache_memory exclude each other")
        return "num_kv_blocks", args.num_kv_blocks
    if args.kv_cache_memory is None:
        return None
    num_blocks = parse_bytes("kv_cache_memory", args.kv_cache_memory) // block_bytes
    if num_blocks == 0:
        raise InvalidConfig(
            "kv_cache_memory",
            f"{args.kv_cache_memory} holds no block: one of {block_size} tokens takes "
            f"{block_bytes:,} bytes",
        )
    return "kv_cache_memory", num_blocks


def _swap_blocks(args: EngineArgs, block_bytes: int, spare_bytes: int) -> int:
    """`spare_bytes`: of host memory, beside weights and KV cache where those lie there too."""
    if args.preemption_mode == "recompute":
        if args.swap_space:
            raise InvalidConfig("swap_space", "needs preemption_mode swap or auto")
        return 0
    if args.swap_space is None:
        return min(int(_DEFAULT_SWAP_GIB * 2**30), spare_bytes) // block_bytes
    asked_bytes = int(args.swap_space * 2**30)
    if asked_bytes > spare_bytes:
        raise InvalidConfig(
            "swap_space",
            f"{args.swap_space:g} GiB are {asked_bytes:,} bytes, and weights and KV cache leave "
            f"{spare_bytes:,} of host memory",
        )
    return asked_bytes // block_bytes


def _max_model_len(args: EngineArgs, model: ModelLimits, num_kv_tokens: int) -> int:
    """Rule S10: the least of what was asked, what the model is for and what the pool holds."""
    asked = args.max_model_len
    if asked is not None and asked > model.max_position:
        raise InvalidConfig(
            "max_model_len", f"{asked} tokens exceed the model's context of {model.max_position}"
        )
    if asked is not None and asked > num_kv_tokens:
        raise InvalidConfig(
            "max_model_len",
            f"{asked} tokens do not fit into the KV cache, which holds {num_kv_tokens}: "
            f"give it more (kv_cache_memory, num_kv_blocks) or ask for less",
        )
    return min(asked or model.max_position, num_kv_tokens)


def _budget(args: EngineArgs, tuning: Recipe, device: str, max_model_len: int) -> int:
    budget = tuning.max_num_batched_tokens
    if budget is None:
        budget = max(_DEFAULT_BUDGET[device], tuning.max_num_seqs)
        if not args.enable_chunked_prefill:
            budget = max(budget, max_model_len)
    shown = _shown(args, "max_num_batched_tokens", budget)
    if budget < tuning.max_num_seqs:
        width = _shown(args, "max_num_seqs", tuning.max_num_seqs)
        raise InvalidConfig(
            "max_num_batched_tokens",
            f"{shown} is less than max_num_seqs, {width}: each running request needs a token a "
            f"step",
        )
    if not args.enable_chunked_prefill and budget < max_model_len:
        raise InvalidConfig(
            "max_num_batched_tokens",
            f"{shown} is less than max_model_len ({max_model_len}), and without "
            f"enable_chunked_prefill a prompt must fit into one step",
        )
    return budget
