"""What was decided, told to a person."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headway.config import EngineConfig
from headway.engine.exactness import Exactness
from headway.models.weights import ModelFile
from headway.runtime import kernels
from headway.runtime.cpu import why_not

__all__ = ["banner"]


def banner(
    config: EngineConfig, model: ModelFile, exactness: Exactness, *, recipe: Sequence[str] = ()
) -> str:
    """What was decided, in a few lines for a person. `recipe`: what is to be said of it."""
    limits = [
        f"max_model_len {config.max_model_len}",
        f"max_num_seqs {config.max_num_seqs}",
        f"max_num_batched_tokens {config.max_num_batched_tokens}",
    ]
    if config.max_num_queued_reqs is not None:
        limits.append(f"max_num_queued_reqs {config.max_num_queued_reqs}")
    if config.max_num_queued_tokens is not None:
        limits.append(f"max_num_queued_tokens {config.max_num_queued_tokens}")
    policy = config.scheduling_policy
    if policy == "priority" and config.priority_aging == 0:
        policy += ", strict"
    if config.preemption_mode != "recompute":
        limits.append(
            f"preemption by {config.preemption_mode}, {config.num_swap_blocks:,} swap blocks"
        )
    where = f"{config.executor} on {config.device}"
    if config.device == "cpu" and config.executor != "reference":
        where += f", {config.num_threads or torch.get_num_threads()} threads, "
        where += (
            f"C++ kernels ({config.kernels})" if config.kernels else _why_no_kernels(config, model)
        )
    lines = [
        f"Model      {model.name} ({model.spec.architecture}, "
        f"{model.num_parameters / 1e6:.0f}M parameters)",
        f"Precision  {config.dtype}, KV cache {config.kv_cache_dtype}; {where}",
        f"KV cache   {config.num_kv_blocks:,} blocks of {config.block_size} = "
        f"{config.num_kv_blocks * config.block_size:,} tokens, "
        f"{config.kv_cache_bytes / 2**30:.2f} GiB; prefix caching "
        f"{'on' if config.enable_prefix_caching else 'off'}",
        f"Scheduler  {policy}; {', '.join(limits)}",
        f"Exactness  {exactness}",
        *(f"{'' if i else 'Recipe':11}{line}" for i, line in enumerate(recipe)),
    ]
    if config.num_speculative_tokens:
        lines.append(f"Drafts     {_drafting(config)}")
    return "\n".join(lines)


def _why_no_kernels(config: EngineConfig, model: ModelFile) -> str:
    if config.executor == "eager":
        return "PyTorch's operators"
    reason = kernels.why_missing() or why_not(model.spec)
    return f"PyTorch's operators, several times slower than the C++ kernels: {reason}"


def _drafting(config: EngineConfig) -> str:
    most = f"up to {config.num_speculative_tokens} tokens a step, as far as they pay"
    if config.speculative_model is not None:
        return f"by {config.speculative_model}, {most}; its KV cache is part of the above"
    lookup = f"{config.prompt_lookup_min} to {config.prompt_lookup_max}"
    return f"by looking the last {lookup} tokens up in prompt and output, {most}"
