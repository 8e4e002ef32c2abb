"""Composes an engine out of its parts."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headway.clock import Clock, MonotonicClock
from headway.config import EngineArgs, EngineConfig, resolve, resolve_speculation
from headway.core.plan import Executor
from headway.engine.async_engine import AsyncEngine
from headway.engine.core import EngineCore
from headway.engine.costs import CostMeter
from headway.engine.exactness import Exactness
from headway.engine.outputs import OutputProcessor
from headway.engine.pace import Pace
from headway.engine.prefill import prefill_rate
from headway.engine.threaded import ThreadedExecutor
from headway.errors import InvalidConfig, ModelError
from headway.grammar.compiler import GrammarCompiler
from headway.grammar.pool import GrammarPool
from headway.llm.banner import banner
from headway.llm.executors import (
    choose_device,
    find_exactness,
    in_its_thread,
    limits_of,
    make_executor,
    make_speculator,
    phase_seconds_of,
)
from headway.llm.recipe import measures_prefill, recipe_lines
from headway.models.sources import Progress, cache_directory, model_name, resolve_model
from headway.models.weights import ModelFile, open_model
from headway.record.recorder import Recorder, RecordingFile
from headway.record.setup import SchedulerConfig, build_scheduler
from headway.runtime.cpu import why_not
from headway.text.chat_template import PromptTemplate, UnusableTemplate, template_of
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
    exactness: Exactness
    phase_seconds: Callable[[], Mapping[str, float]] | None
    """What the time of all steps went to so far; None where the executor does not tell."""
    recipe: tuple[str, ...]
    """What is to be said of the recipe at start, in lines; none without one."""

    def asynchronous(self) -> AsyncEngine:
        """The same engine for an event loop. Use one or the other, not both."""
        return AsyncEngine(self.core)

    def banner(self) -> str:
        """What was decided, in a few lines for a person."""
        return banner(self.config, self.model, self.exactness, recipe=self.recipe)


def build_engine(
    args: EngineArgs, *, clock: Clock | None = None, progress: Progress | None = None
) -> Engine:
    """Loads the model that `args` names, fetching it if need be, and composes its engine.

    Raises `InvalidConfig` naming the option, or `ModelError`, before the weights are loaded.
    """
    device = choose_device(args)
    model, draft = _models(args, progress)
    config = resolve(
        args,
        limits_of(model, device),
        device=device,
        draft=None if draft is None else limits_of(draft, device),
    )
    if draft is not None and config.kernels and (reason := why_not(draft.spec)):
        raise InvalidConfig("speculative_model", f"the C++ kernels do not run it: {reason}")
    tokenizer = model.tokenizer()
    chat_template = template_of(model.chat_template, tokenizer)
    if progress is not None and isinstance(chat_template, UnusableTemplate):
        progress(f"no chat: {chat_template.reason}")
    if progress is not None:
        progress(f"loading {model.name} ({model.size_bytes / 1e6:,.0f} MB)")
    clock = clock or MonotonicClock()
    executor = in_its_thread(config, partial(make_executor, config, model))
    directory = cache_directory(_cache_dir(args)) / "probe"
    exactness = find_exactness(config, model.spec, executor, directory)
    recipe = tuple(recipe_lines(config, _prefill_rate(config, executor, clock)))
    core = _core(config, model, draft, tokenizer, clock, executor)
    defaults = model.sampling_defaults if config.generation_config == "auto" else {}
    return Engine(
        core,
        config,
        model,
        tokenizer,
        chat_template,
        defaults,
        exactness,
        phase_seconds_of(executor),
        recipe,
    )


def _prefill_rate(config: EngineConfig, executor: Executor, clock: Clock) -> float | None:
    """Of an executor on which nothing is cached yet; None: nothing depends on it."""
    if not measures_prefill(config):
        return None
    return prefill_rate(
        executor,
        clock,
        block_size=config.block_size,
        num_blocks=config.num_kv_blocks,
        max_model_len=config.max_model_len,
        max_tokens=config.max_num_batched_tokens,
    )


def _core(
    config: EngineConfig,
    model: ModelFile,
    draft: ModelFile | None,
    tokenizer: Tokenizer,
    clock: Clock,
    executor: Executor,
) -> EngineCore:
    setup = _scheduler_config(config)
    scheduler = build_scheduler(
        setup,
        vocab_size=model.spec.vocab_size,
        max_logprobs=config.max_logprobs,
        hash_secret=secrets.randbits(63),
    )
    return EngineCore(
        scheduler=scheduler,
        executor=executor,
        outputs=OutputProcessor(tokenizer),
        clock=clock,
        eos_token_ids=tokenizer.eos_token_ids,
        grammars=GrammarPool(GrammarCompiler(tokenizer).compile),
        seeds=random.Random(secrets.randbits(64) if config.seed is None else config.seed),
        costs=CostMeter(executor.block_copy_s()) if config.preemption_mode == "auto" else None,
        queue_timeout_s=config.queue_timeout_s,
        recorder=_recorder(config, setup),
        async_scheduling=config.async_scheduling,
        pace=Pace(executor.ended) if isinstance(executor, ThreadedExecutor) else None,
        speculator=make_speculator(config, draft, clock, beside=executor),
        debug_invariants=config.debug_invariants,
    )


def _models(args: EngineArgs, progress: Progress | None) -> tuple[ModelFile, ModelFile | None]:
    """The model, and the one that drafts for it."""
    resolve_speculation(args)  # before anything is fetched in vain
    cache_dir = _cache_dir(args)
    path = resolve_model(args.model, cache_dir=cache_dir, progress=progress, revision=args.revision)
    model = replace(open_model(path), name=model_name(path))
    if args.speculative_model is None:
        return model, None
    try:
        path = resolve_model(args.speculative_model, cache_dir=cache_dir, progress=progress)
        draft = replace(open_model(path), name=model_name(path))
    except ModelError as error:
        raise InvalidConfig("speculative_model", str(error)) from error
    if draft.spec.vocab_size != model.spec.vocab_size:
        raise InvalidConfig(
            "speculative_model",
            f"{draft.name} has a vocabulary of {draft.spec.vocab_size:,} tokens, and {model.name} "
            f"one of {model.spec.vocab_size:,}; it must be the same",
        )
    return model, draft


def _cache_dir(args: EngineArgs) -> Path | None:
    return None if args.cache_dir is None else Path(args.cache_dir).expanduser()


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
