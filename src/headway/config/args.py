"""What a user asks of an engine; the help texts are the documentation, on the command line too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any

from headway.config.recipes import DEFAULTS, RECIPES, Recipe
from headway.errors import InvalidConfig

__all__ = ["DTYPE_BYTES", "EngineArgs"]

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "int8": 1})

_MODEL, _KV, _SCHEDULER, _POLICY = "model", "KV cache", "scheduler", "scheduling policy"
_SPECULATION = "speculative decoding"


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
        "what runs the model: torch (on a CPU with the C++ kernels, where they are built), eager "
        "(PyTorch's operators alone), or reference (NumPy; slow, for checking the others)",
        ("torch", "eager", "reference"),
    )
    device: str = _option(
        "auto", _MODEL, "where the model runs; auto: cuda if there is one", ("auto", "cpu", "cuda")
    )
    dtype: str = _option(
        "auto",
        _MODEL,
        "precision of the weights and of the products: float32, bfloat16, or int8 (C++ kernels; "
        "weights by channel, activations by token, exact integer sums); auto: the fastest of them "
        "on this CPU that is at most 1 % worse in perplexity, bfloat16 on cuda (vLLM: what the "
        "model was saved in)",
        ("auto", *DTYPE_BYTES),
    )
    kv_cache_dtype: str = _option(
        "auto",
        _KV,
        "precision of the KV cache (int8: a scale by token and head); auto: the same as dtype",
        ("auto", *DTYPE_BYTES),
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
    recipe: str | None = _option(
        None,
        _SCHEDULER,
        "for a kind of load, sets max_num_batched_tokens, max_num_seqs, block_size, "
        "enable_prefix_caching, long_prefill_token_threshold and max_num_queued_reqs; each of them "
        "that is given too wins (vLLM: none)",
        tuple(RECIPES),
    )
    block_size: int | None = _option(
        None, _KV, f"tokens per KV block: 16 or 32; default: the recipe's, or {DEFAULTS.block_size}"
    )
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
        "token budget of one step; default: the recipe's, or 2048 on cuda and 256 on CPU, where "
        "2048 prompt tokens would be a step of over a second (vLLM: 2048 or more everywhere), at "
        "least max_num_seqs, and max_model_len without chunked prefill",
    )
    max_num_seqs: int | None = _option(
        None,
        _SCHEDULER,
        f"most requests that run at once; default: the recipe's, or {DEFAULTS.max_num_seqs}",
    )
    enable_prefix_caching: bool | None = _option(
        None, _KV, "reuse the KV of equal prefixes; default: on"
    )
    enable_chunked_prefill: bool = _option(
        True, _SCHEDULER, "compute a long prompt over several steps, beside the others' tokens"
    )
    long_prefill_token_threshold: int | None = _option(
        None,
        _SCHEDULER,
        "most prompt tokens that one request gets in a step while any other runs or waits; 0: "
        "as many as the budget leaves; default: the recipe's, or 0 (vLLM applies it also when a "
        "request is alone)",
    )
    scheduling_policy: str = _option(
        "fcfs",
        _POLICY,
        "who goes first: fcfs, by arrival; priority, by the request's priority (lower is more "
        "urgent), aged, then arrival; fair, the tenant that was served least; sjf, the fewest "
        "uncomputed prompt tokens; lpm, the longest cached prefix; deadline, the earliest TTFT "
        "deadline; or a class of your own, as module:Class or the name of an entry point in "
        "headway.policies (vLLM: fcfs, priority)",
    )
    priority_aging: float = _option(
        30.0,
        _POLICY,
        "priority: seconds of waiting that count as one level more urgent; 0: the order is "
        "strict, and the least urgent may wait for ever (vLLM: strict)",
    )
    preempt_for_priority: bool = _option(
        True,
        _POLICY,
        "priority: a more urgent request takes the place of a running one (vLLM: only when "
        "memory runs out)",
    )
    fair_weights: str | None = _option(
        None, _POLICY, "fair: shares of tenants, as alice=2,bob=1; default: 1 for everybody"
    )
    fair_input_weight: float = _option(1.0, _POLICY, "fair: what a computed prompt token counts")
    fair_output_weight: float = _option(2.0, _POLICY, "fair: what an output token counts")
    aging_tokens_per_s: float = _option(
        100.0, _POLICY, "sjf, lpm: tokens that a second of waiting counts in a request's favour"
    )
    default_deadline_s: float = _option(
        10.0, _POLICY, "deadline: seconds to the first token for a request that names none"
    )
    max_skip_ahead: int = _option(
        0,
        _SCHEDULER,
        "requests that may be admitted before the head of the queue while that one lacks KV "
        "blocks, over its whole wait; 0: strict order (vLLM: strict)",
    )
    in_batch_prefix_sharing: bool = _option(
        True,
        _SCHEDULER,
        "a request whose prefix a running one is computing waits for it instead of computing it "
        "too (vLLM: both compute it)",
    )
    preemption_mode: str = _option(
        "recompute",
        _SCHEDULER,
        "what becomes of a preempted request's KV: recompute, it is dropped; swap, copied to the "
        "swap space; auto, whichever is measured to cost less (vLLM: recompute)",
        ("recompute", "swap", "auto"),
    )
    swap_space: float | None = _option(
        None,
        _SCHEDULER,
        "GiB of host memory for swapped KV; with preemption_mode swap or auto the default is 4, or "
        "what there is (vLLM: none)",
    )
    max_preemptions: int = _option(
        8,
        _SCHEDULER,
        "preemptions for memory after which a request runs again only with all the KV blocks it "
        "may ever need reserved (vLLM: no limit)",
    )
    queue_timeout_s: float | None = _option(
        None,
        _SCHEDULER,
        "seconds after which a request that was never admitted ends; default: never (vLLM: never)",
    )
    max_num_queued_reqs: int | None = _option(
        None,
        _SCHEDULER,
        "most requests that wait for their first admission; one more is refused at once; "
        "default: the recipe's, or no limit (vLLM's option of this name counts running ones too)",
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
    async_scheduling: bool = _option(
        True,
        _SCHEDULER,
        "make the next plan shortly before a step ends, and give out the last step's text while "
        "the next one runs (vLLM: plans a whole step ahead, so who arrives waits for one more)",
    )
    speculative_ngram: int | None = _option(
        None,
        _SPECULATION,
        "draft up to so many tokens of a request in a step: those that followed its last tokens "
        "when they came before; fewer, or none, where that does not pay (vLLM: "
        "num_speculative_tokens of the method ngram, always as many)",
    )
    prompt_lookup_min: int | None = _option(
        None,
        _SPECULATION,
        "speculative_ngram: least tokens that must have come before; default 2 (vLLM: 5)",
    )
    prompt_lookup_max: int | None = _option(
        None,
        _SPECULATION,
        "speculative_ngram: most tokens that are looked for; default 4 (vLLM: 5)",
    )
    speculative_model: str | None = _option(
        None,
        _SPECULATION,
        "a smaller model with the same vocabulary, named as the model is, that drafts with the "
        "request's own sampling; its weights and KV come out of the same memory (vLLM: model of "
        "speculative_config)",
    )
    num_speculative_tokens: int | None = _option(
        None,
        _SPECULATION,
        "speculative_model: most drafts of a request in a step, fewer or none where that does not "
        "pay; default 4 (vLLM: always as many)",
    )
    probe: str = _option(
        "fast",
        _MODEL,
        "how the kernels' promise that scheduling never changes an answer is tried at the start: "
        "fast, their products and attention by themselves, or what a full probe found before; "
        "full, the model too, which takes seconds, and what it finds is kept; off, not at all, and "
        "nothing is promised (vLLM: VLLM_BATCH_INVARIANT, on some GPUs, without a test)",
        ("fast", "full", "off"),
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
    record: str | None = _option(
        None,
        _SCHEDULER,
        "file to record arrivals and steps in, for headway replay; of prompts and outputs it "
        "holds lengths and hashes",
    )
    record_content: bool = _option(
        False, _SCHEDULER, "put the tokens of prompts and outputs into the recording too"
    )
    debug_invariants: bool = _option(
        False, _SCHEDULER, "check the scheduler's invariants after every step (slow)"
    )

    @property
    def tuning(self) -> Recipe:
        """What the recipe decides, or without one the defaults, but for what was asked for. The
        recipe must be one of `RECIPES`."""
        base = DEFAULTS if self.recipe is None else RECIPES[self.recipe]
        given = {name: getattr(self, name) for name in base.options()}
        return replace(base, **{name: value for name, value in given.items() if value is not None})

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineArgs:
        """Raises InvalidConfig, naming it, for an option that does not exist."""
        names = [item.name for item in fields(cls)]
        for name in options:
            if name not in names:
                raise InvalidConfig(name, f"is no option; there are {', '.join(names)}")
        # A path may be one of pathlib's.
        paths = {
            name
            for name in ("model", "cache_dir", "speculative_model")
            if isinstance(options.get(name), PathLike)
        }
        return cls(**{**options, **{name: fspath(options[name]) for name in paths}})
