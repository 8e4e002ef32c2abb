"""Executors, and what depends on the machine that they run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from headway.clock import Clock
from headway.config import EngineArgs, EngineConfig, ModelLimits
from headway.core.plan import Executor
from headway.engine.draft_model import DraftModelProposer
from headway.engine.exactness import Exactness
from headway.engine.ngram import NgramProposer
from headway.engine.speculation import Proposer, Speculator
from headway.engine.threaded import ThreadedExecutor
from headway.errors import InvalidConfig
from headway.models.spec import DecoderSpec, DecoderWeights
from headway.models.weights import ModelFile
from headway.runtime import kernels
from headway.runtime.cpu import KernelBackend, KernelSettings, promise, why_not
from headway.runtime.memory import available_host_bytes
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import Backend, EagerBackend, TorchExecutor

__all__ = [
    "choose_device",
    "find_exactness",
    "in_its_thread",
    "limits_of",
    "make_executor",
    "make_speculator",
    "phase_seconds_of",
]


def choose_device(args: EngineArgs) -> str:
    has_cuda = torch.cuda.is_available()
    if args.device == "cuda" and not has_cuda:
        raise InvalidConfig("device", "cuda: this PyTorch build finds no CUDA device")
    if args.device == "auto":
        return "cuda" if has_cuda and args.executor == "torch" else "cpu"
    return args.device


def limits_of(model: ModelFile, device: str) -> ModelLimits:
    why_no_kernels = kernels.why_missing() or why_not(model.spec)
    return ModelLimits(
        max_position=model.spec.max_position,
        num_parameters=model.num_parameters,
        num_channels=model.num_channels,
        kv_elements_per_token=model.spec.kv_elements_per_token,
        available_bytes=_available_bytes(device),
        host_bytes=available_host_bytes() if device == "cuda" else None,
        kv_vectors_per_token=model.spec.kv_elements_per_token // model.spec.head_dim,
        kernels=None if why_no_kernels else kernels.native.isas()[0],
        why_no_kernels=why_no_kernels or "",
    )


def _available_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else available_host_bytes()


def make_executor(config: EngineConfig, model: ModelFile) -> Executor:
    weights = model.load_weights()
    if config.executor == "reference":
        return ReferenceExecutor(
            model.spec,
            weights,
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            num_swap_blocks=config.num_swap_blocks,
        )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    return TorchExecutor(model.spec, _backend(config, model.spec, weights))


def _backend(config: EngineConfig, spec: DecoderSpec, weights: DecoderWeights) -> Backend:
    blocks = {
        "num_blocks": config.num_kv_blocks,
        "block_size": config.block_size,
        "num_swap_blocks": config.num_swap_blocks,
    }
    if config.kernels is not None:
        return KernelBackend(
            kernels.native,
            spec,
            weights,
            **blocks,
            dtype=config.dtype,
            kv_cache_dtype=config.kv_cache_dtype,
            num_threads=torch.get_num_threads(),
            isa=config.kernels,
        )
    return EagerBackend(
        spec,
        weights,
        **blocks,
        device=config.device,
        dtype=getattr(torch, config.dtype),
        kv_cache_dtype=getattr(torch, config.kv_cache_dtype),
    )


def in_its_thread(
    config: EngineConfig, make: Callable[[], Executor], *, beside: Executor | None = None
) -> Executor:
    """Made in the thread that it will run in, if it is to have one: `beside`'s, or its own."""
    if not config.async_scheduling:
        return make()
    assert beside is None or isinstance(beside, ThreadedExecutor)
    return ThreadedExecutor(make, beside=beside)


def make_speculator(
    config: EngineConfig, draft: ModelFile | None, clock: Clock, *, beside: Executor
) -> Speculator | None:
    """`beside`: whose thread a draft model shares."""
    if not config.num_speculative_tokens:
        return None
    proposer: Proposer = NgramProposer(
        min_ngram=config.prompt_lookup_min, max_ngram=config.prompt_lookup_max
    )
    if draft is not None:
        own = replace(config, num_swap_blocks=0)
        proposer = DraftModelProposer(
            in_its_thread(config, partial(make_executor, own, draft), beside=beside),
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_position=draft.spec.max_position,
        )
    return Speculator(proposer, num_tokens=config.num_speculative_tokens, clock=clock)


def _backend_of(executor: Executor) -> Backend | None:
    inner = executor.inner if isinstance(executor, ThreadedExecutor) else executor
    return inner.backend if isinstance(inner, TorchExecutor) else None


def phase_seconds_of(executor: Executor) -> Callable[[], Mapping[str, float]] | None:
    """What tells where the time of all steps went; None: nothing does."""
    backend = _backend_of(executor)
    return backend.phase_seconds if isinstance(backend, KernelBackend) else None


def find_exactness(
    config: EngineConfig, spec: DecoderSpec, executor: Executor, directory: Path
) -> Exactness:
    """What may be promised of an executor on which nothing has run yet. What a full probe finds is
    kept in `directory`."""
    backend = _backend_of(executor)
    if config.kernels is None or backend is None:
        what = "NumPy's" if backend is None else "PyTorch's"
        note = f"{what} products may change a row's last bits with the rows beside it"
        return Exactness(False, note)
    settings = KernelSettings(
        native=kernels.native,
        isa=config.kernels,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        block_size=config.block_size,
        num_threads=torch.get_num_threads(),
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    probe = partial(promise, config.probe, settings, spec, backend, directory)
    return executor.do(probe) if isinstance(executor, ThreadedExecutor) else probe()
