"""What was asked of an engine, and what that came to.

`EngineArgs` is what a user writes: everything optional. `resolve` makes an `EngineConfig` of it:
complete, consistent, never changed again. Names, units and defaults are vLLM's unless a help
text says otherwise; the help texts are the documentation, on the command line too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any

from headway.errors import InvalidConfig

__all__ = ["DTYPE_BYTES", "EngineArgs", "EngineConfig", "ModelLimits", "parse_bytes", "resolve"]

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2})
_BLOCK_SIZES = (16, 32)
_KV_SHARE = 0.4
_DEFAULT_BUDGET = MappingProxyType({"cpu": 256, "cuda": 2048})

_MODEL, _KV, _SCHEDULER = "model", "KV cache", "scheduler"


def _option(default: Any, group: str, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"group": group, "help": text, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """The options of an engine, as asked for. `headway serve --help` shows the texts below."""

    model: str | None = _option(
        None,
        _MODEL,
        "a GGUF file, a directory that holds one or a Hugging Face model, a model's name "
        "(SmolLM2-135M-Instruct), or one of the hub, as org/name or org/name:Q4_K_M",
    )
    revision: str | None = _option(
        None, _MODEL, "branch, tag or commit of a model from the hub; default: its main branch"
    )
    cache_dir: str | None = _option(
        None,
        _MODEL,
        "where fetched models are kept; default: $HEADWAY_CACHE_DIR, else headway in the "
        "user's cache directory, and the hub's own cache for its models (vLLM: download_dir)",
    )
    executor: str = _option(
        "torch",
        _MODEL,
        "what runs the model: torch, or reference (NumPy; slow, for checking the other)",
        ("torch", "reference"),
    )
    device: str = _option(
        "auto", _MODEL, "where the model runs; auto: cuda if there is one", ("auto", "cpu", "cuda")
    )
    dtype: str = _option(
        "auto",
        _MODEL,
        "precision of the weights and of the arithmetic; auto: float32 on CPU, bfloat16 on cuda "
        "(vLLM: what the model was saved in)",
        ("auto", *DTYPE_BYTES),
    )
    kv_cache_dtype: str = _option(
        "auto", _KV, "precision of the KV cache; auto: the same as dtype", ("auto", *DTYPE_BYTES)
    )
    num_threads: int | None = _option(
        None, _MODEL, "CPU threads of the model; default: PyTorch's choice"
    )
    max_model_len: int | None = _option(
        None,
        _MODEL,
        "most tokens of one request, prompt and output together; default: what the model was "
        "made for or what the KV cache holds, whichever is less (vLLM refuses to start when the "
        "cache holds less)",
    )
    block_size: int = _option(16, _KV, "tokens per KV block: 16 or 32")
    num_kv_blocks: int | None = _option(
        None, _KV, "KV blocks, given as a number (vLLM: num_gpu_blocks_override)"
    )
    kv_cache_memory: str | int | None = _option(
        None,
        _KV,
        "KV memory in bytes, e.g. 2GiB; default: 40 % of the memory that the weights leave "
        "available, at most what max_num_seqs requests of max_model_len tokens can fill "
        "(vLLM: kv_cache_memory_bytes, or VLLM_CPU_KVCACHE_SPACE on CPU)",
    )
    max_num_batched_tokens: int | None = _option(
        None,
        _SCHEDULER,
        "token budget of one step; default 2048 on cuda and 256 on CPU, where 2048 prompt tokens "
        "would be a step of over a second (vLLM: 2048 or more everywhere), at least max_num_seqs, "
        "and max_model_len without chunked prefill",
    )
    max_num_seqs: int = _option(128, _SCHEDULER, "most requests that run at once")
    enable_prefix_caching: bool = _option(True, _KV, "reuse the KV of equal prefixes")
    enable_chunked_prefill: bool = _option(
        True, _SCHEDULER, "compute a long prompt over several steps, beside the others' tokens"
    )
    long_prefill_token_threshold: int = _option(
        0,
        _SCHEDULER,
        "most prompt tokens that one request gets in a step while any other runs or waits; 0: "
        "as many as the budget leaves (vLLM applies it also when a request is alone)",
    )
    scheduling_policy: str = _option(
        "fcfs",
        _SCHEDULER,
        "who goes first: fcfs, by arrival; priority, by the request's priority (lower is more "
        "urgent), then arrival",
        ("fcfs", "priority"),
    )
    max_num_queued_reqs: int | None = _option(
        None,
        _SCHEDULER,
        "most requests that wait for their first admission; one more is refused at once; "
        "default: no limit (vLLM's option of this name counts running ones too)",
    )
    max_num_queued_tokens: int | None = _option(
        None, _SCHEDULER, "the same for their prompt tokens; default: no limit (vLLM: none)"
    )
    watermark: float = _option(
        0.01,
        _KV,
        "fraction of the KV blocks that new and preempted requests leave free while others run "
        "(vLLM: 0)",
    )
    reserve_full_prompt: bool = _option(
        True,
        _KV,
        "admit a request only when all its known tokens fit beside those of the admitted ones, "
        "not just its first chunk (vLLM: scheduler_reserve_full_isl)",
    )
    max_logprobs: int = _option(
        20,
        _SCHEDULER,
        "most log-probabilities that a request may ask for per token; -1: the whole vocabulary",
    )
    generation_config: str = _option(
        "auto",
        _MODEL,
        "auto: where a request leaves a sampling option out, the model's own generation_config "
        "decides; none: the neutral defaults hold (vLLM: vllm)",
        ("auto", "none"),
    )
    seed: int | None = _option(
        None,
        _SCHEDULER,
        "makes the seeds of requests without one repeatable; default: drawn afresh (vLLM: 0)",
    )
    debug_invariants: bool = _option(
        False, _SCHEDULER, "check the scheduler's invariants after every step (slow)"
    )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineArgs:
        """Raises InvalidConfig, naming it, for an option that does not exist."""
        names = [item.name for item in fields(cls)]
        for name in options:
            if name not in names:
                raise InvalidConfig(name, f"is no option; there are {', '.join(names)}")
        # A path may be one of pathlib's.
        paths = {name for name in ("model", "cache_dir") if isinstance(options.get(name), PathLike)}
        return cls(**{**options, **{name: fspath(options[name]) for name in paths}})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The options in force. Fields as in `EngineArgs`, all of them decided."""

    executor: str
    device: str
    dtype: str
    kv_cache_dtype: str
    num_threads: int | None
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
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    watermark: float
    reserve_full_prompt: bool
    max_logprobs: int
    generation_config: str
    seed: int | None
    debug_invariants: bool


def resolve(args: EngineArgs, model: ModelLimits, *, device: str) -> EngineConfig:
    """Decides every option, or raises InvalidConfig naming the one that cannot be honoured.

    `device`: `cpu` or `cuda`, what `args.device` came to on this machine.
    """
    _check_types(args)
    _check_values(args)
    dtype = _resolve_dtype(args, device)
    kv_dtype = dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    if args.executor == "reference":
        if {dtype, kv_dtype} != {"float32"} or device != "cpu":
            raise InvalidConfig("executor", "reference computes in float32 on the CPU alone")
        if args.num_threads is not None:
            raise InvalidConfig("num_threads", "is for the torch executor; NumPy has its own")
    block_bytes = args.block_size * model.kv_elements_per_token * DTYPE_BYTES[kv_dtype]
    num_blocks = _num_blocks(args, model, block_bytes, model.num_parameters * DTYPE_BYTES[dtype])
    max_model_len = _max_model_len(args, model, num_blocks * args.block_size)
    decided: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "max_model_len": max_model_len,
        "num_kv_blocks": num_blocks,
        "kv_cache_bytes": num_blocks * block_bytes,
        "max_num_batched_tokens": _budget(args, device, max_model_len),
    }
    names = [item.name for item in fields(EngineConfig)]
    as_asked = {name: getattr(args, name) for name in names if name not in decided}
    return EngineConfig(**decided, **as_asked)


_AT_LEAST = MappingProxyType(
    {
        "num_threads": 1,
        "max_model_len": 2,
        "num_kv_blocks": 1,
        "max_num_batched_tokens": 1,
        "max_num_seqs": 1,
        "long_prefill_token_threshold": 0,
        "max_num_queued_reqs": 1,
        "max_num_queued_tokens": 1,
        "max_logprobs": -1,
    }
)


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


def _check_values(args: EngineArgs) -> None:
    for item in fields(args):
        value, choices = getattr(args, item.name), item.metadata["choices"]
        if choices and value not in choices:
            raise InvalidConfig(item.name, f"must be one of {', '.join(choices)}, not {value!r}")
    for name, low in _AT_LEAST.items():
        value = getattr(args, name)
        if value is not None and value < low:
            raise InvalidConfig(name, f"must be at least {low}, not {value}")
    if args.num_threads is not None and args.num_threads > _MOST_THREADS:
        raise InvalidConfig("num_threads", f"must be at most {_MOST_THREADS}")
    if args.block_size not in _BLOCK_SIZES:
        raise InvalidConfig("block_size", f"must be 16 or 32, not {args.block_size!r}")
    if not 0 <= args.watermark < 1:
        raise InvalidConfig("watermark", f"must be in [0, 1), not {args.watermark!r}")
    if args.long_prefill_token_threshold and not args.enable_chunked_prefill:
        raise InvalidConfig("long_prefill_token_threshold", "needs enable_chunked_prefill")


def _resolve_dtype(args: EngineArgs, device: str) -> str:
    if args.dtype != "auto":
        return args.dtype
    return "bfloat16" if device == "cuda" and args.executor == "torch" else "float32"


def _num_blocks(args: EngineArgs, model: ModelLimits, block_bytes: int, weight_bytes: int) -> int:
    spare_bytes = model.available_bytes - weight_bytes
    memory = f"{model.available_bytes:,} bytes are available and the weights take {weight_bytes:,}"
    asked = _blocks_asked_for(args, block_bytes)
    if asked is not None:
        name, num_blocks = asked
        if num_blocks * block_bytes > spare_bytes:
            raise InvalidConfig(name, f"is {num_blocks * block_bytes:,} bytes, but {memory}")
        return num_blocks
    share = int(spare_bytes * _KV_SHARE)
    if share < block_bytes:
        raise InvalidConfig("kv_cache_memory", f"{memory}: nothing is left for the KV cache")
    longest = min(args.max_model_len or model.max_position, model.max_position)
    most = args.max_num_seqs * -(-longest // args.block_size)
    return min(share // block_bytes, most)


def _blocks_asked_for(args: EngineArgs, block_bytes: int) -> tuple[str, int] | None:
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
            f"{args.kv_cache_memory} holds no block: one of {args.block_size} tokens takes "
            f"{block_bytes:,} bytes",
        )
    return "kv_cache_memory", num_blocks


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


def _budget(args: EngineArgs, device: str, max_model_len: int) -> int:
    budget = args.max_num_batched_tokens
    if budget is None:
        budget = max(_DEFAULT_BUDGET[device], args.max_num_seqs)
        if not args.enable_chunked_prefill:
            budget = max(budget, max_model_len)
    if budget < args.max_num_seqs:
        raise InvalidConfig(
            "max_num_batched_tokens",
            f"{budget} is less than max_num_seqs ({args.max_num_seqs}): each running request "
            f"needs a token a step",
        )
    if not args.enable_chunked_prefill and budget < max_model_len:
        raise InvalidConfig(
            "max_num_batched_tokens",
            f"{budget} is less than max_model_len ({max_model_len}), and without "
            f"enable_chunked_prefill a prompt must fit into one step",
        )
    return budget


_UNITS = MappingProxyType(
    {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    | {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    | {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
)


def parse_bytes(name: str, text: str | int) -> int:
    """`2GiB`, `512MiB`, `1.5g`, `1000000`: a number of bytes; InvalidConfig names `name`."""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)\s*", str(text).lower())
    if match is None or match[2] not in _UNITS:
        raise InvalidConfig(name, f"must be a size like 2GiB or a number of bytes, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])
