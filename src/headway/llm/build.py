"""Composes an engine out of its parts."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.clock import Clock, MonotonicClock
from headway.config import EngineArgs, EngineConfig, ModelLimits, resolve
from headway.core.plan import Executor
from headway.engine.async_engine import AsyncEngine
from headway.engine.core import EngineCore
from headway.engine.costs import CostMeter
from headway.engine.outputs import OutputProcessor
from headway.errors import InvalidConfig, ModelError
from headway.models.sources import Progress, model_name, resolve_model
from headway.models.weights import ModelFile, open_model
from headway.record.recorder import Recorder, RecordingFile
from headway.record.setup import SchedulerConfig, build_scheduler
from headway.runtime.memory import available_host_bytes
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import TorchExecutor
from headway.text.chat_template import ChatTemplate, PromptTemplate, UnusableTemplate
from headway.text.tokenizer import Tokenizer

__all__ = ["Engine", "build_engine"]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and what its users must know of the model."""

    core: EngineCore
    config: EngineConfig
    model: ModelFile
    tokenizer: Tokenizer
    chat_template: PromptTemplate | None
    sampling_defaults: Mapping[str, Any]
    """Sampling options, by name, that the model asks for where a request leaves them out."""

    def asynchronous(self) -> AsyncEngine:
        """The same engine for an event loop. Use one or the other, not both."""
        return AsyncEngine(
            self.core,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            sampling_defaults=self.sampling_defaults,
            max_model_len=self.config.max_model_len,
        )

    def banner(self) -> str:
        """What was decided, in a few lines for a person."""
        config, spec = self.config, self.model.spec
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
        if config.device == "cpu" and config.executor == "torch":
            where += f", {torch.get_num_threads()} threads"
        return "\n".join(
            (
                f"Model      {self.model.name} ({spec.architecture}, "
                f"{self.model.num_parameters / 1e6:.0f}M parameters)",
                f"Precision  {config.dtype}, KV cache {config.kv_cache_dtype}; {where}",
                f"KV cache   {config.num_kv_blocks:,} blocks of {config.block_size} = "
                f"{config.num_kv_blocks * config.block_size:,} tokens, "
                f"{config.kv_cache_bytes / 2**30:.2f} GiB; prefix caching "
                f"{'on' if config.enable_prefix_caching else 'off'}",
                f"Scheduler  {policy}; {', '.join(limits)}",
            )
        )


def build_engine(
    args: EngineArgs, *, clock: Clock | None = None, progress: Progress | None = None
) -> Engine:
    """Loads the model that `args` names, fetching it if need be, and composes its engine.

    Raises `InvalidConfig` naming the option, or `ModelError`, before the weights are loaded.
    """
    device = _device(args)
    cache_dir = None if args.cache_dir is None else Path(args.cache_dir).expanduser()
    path = resolve_model(args.model, cache_dir=cache_dir, progress=progress, revision=args.revision)
    model = replace(open_model(path), name=model_name(path))
    limits = ModelLimits(
        max_position=model.spec.max_position,
        num_parameters=model.num_parameters,
        kv_elements_per_token=model.spec.kv_elements_per_token,
        available_bytes=_available_bytes(device),
        host_bytes=available_host_bytes() if device == "cuda" else None,
    )
    config = resolve(args, limits, device=device)
    tokenizer = model.tokenizer()
    chat_template = _chat_template(model, tokenizer, progress)
    if progress is not None:
        progress(f"loading {model.name} ({model.size_bytes / 1e6:,.0f} MB)")
    seeds = random.Random(secrets.randbits(64) if config.seed is None else config.seed)
    setup = _scheduler_config(config)
    scheduler = build_scheduler(
        setup,
        vocab_size=model.spec.vocab_size,
        max_logprobs=config.max_logprobs,
        hash_secret=secrets.randbits(63),
    )
    executor = _executor(config, model)
    core = EngineCore(
        scheduler=scheduler,
        executor=executor,
        outputs=OutputProcessor(tokenizer),
        clock=clock or MonotonicClock(),
        eos_token_ids=tokenizer.eos_token_ids,
        seeds=seeds,
        costs=CostMeter(executor.block_copy_s()) if config.preemption_mode == "auto" else None,
        queue_timeout_s=config.queue_timeout_s,
        recorder=_recorder(config, setup),
        debug_invariants=config.debug_invariants,
    )
    defaults = model.sampling_defaults if config.generation_config == "auto" else {}
    return Engine(core, config, model, tokenizer, chat_template, defaults)


def _scheduler_config(config: EngineConfig) -> SchedulerConfig:
    fields = {name: getattr(config, name) for name in SchedulerConfig.__struct_fields__}
    return SchedulerConfig(**{**fields, "fair_weights": dict(config.fair_weights)})


def _recorder(config: EngineConfig, setup: SchedulerConfig) -> Recorder | None:
    if config.record is None:
        return None
    try:
        file = RecordingFile(config.record, setup)
    except OSError as error:
        raise InvalidConfig("record", f"{config.record}: {error.strerror or error}") from error
    return Recorder(file, block_size=config.block_size, content=config.record_content)


def _device(args: EngineArgs) -> str:
    has_cuda = torch.cuda.is_available()
    if args.device == "cuda" and not has_cuda:
        raise InvalidConfig("device", "cuda: this PyTorch build finds no CUDA device")
    if args.device == "auto":
        return "cuda" if has_cuda and args.executor == "torch" else "cpu"
    return args.device


def _available_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else available_host_bytes()


def _executor(config: EngineConfig, model: ModelFile) -> Executor:
    weights = model.load_weights()
    blocks, size = config.num_kv_blocks, config.block_size
    if config.executor == "reference":
        return ReferenceExecutor(
            model.spec,
            weights,
            num_blocks=blocks,
            block_size=size,
            num_swap_blocks=config.num_swap_blocks,
        )
    return TorchExecutor(
        model.spec,
        weights,
        num_blocks=blocks,
        block_size=size,
        num_swap_blocks=config.num_swap_blocks,
        device=config.device,
        dtype=getattr(torch, config.dtype),
        kv_cache_dtype=getattr(torch, config.kv_cache_dtype),
        num_threads=config.num_threads,
    )


def _chat_template(
    model: ModelFile, tokenizer: Tokenizer, progress: Progress | None
) -> PromptTemplate | None:
    if model.chat_template is None:
        return None
    try:
        return ChatTemplate(
            model.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )
    except ModelError as error:
        if progress is not None:
            progress(f"no chat: {error}")
        return UnusableTemplate(str(error))
