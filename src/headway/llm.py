"""Composes an engine out of its parts, and the offline way to use one."""

from __future__ import annotations

import itertools
import random
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tqdm import tqdm

from headway.clock import Clock, MonotonicClock
from headway.config import EngineArgs, EngineConfig, ModelLimits, resolve
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.plan import Executor
from headway.core.policy import POLICIES
from headway.core.scheduler import Scheduler
from headway.engine.async_engine import AsyncEngine
from headway.engine.core import EngineCore
from headway.engine.outputs import (
    CompletionOutput,
    NewRequest,
    OutputDelta,
    OutputProcessor,
    RequestOutput,
)
from headway.errors import InvalidConfig, InvalidRequest
from headway.metrics import Observer
from headway.models.sources import Progress, resolve_model
from headway.models.spec import DecoderSpec
from headway.models.weights import ModelFile, open_model
from headway.runtime.memory import available_host_bytes
from headway.runtime.reference import ReferenceExecutor
from headway.runtime.torch import TorchExecutor
from headway.text.chat_template import ChatTemplate
from headway.text.tokenizer import Tokenizer

__all__ = ["LLM", "Engine", "build_engine"]

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's `{"prompt": …}` or `{"prompt_token_ids": …}`."""

Conversation: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages, each with a `role` and a `content`."""

_PROGRESS_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and what its users must know of the model."""

    core: EngineCore
    config: EngineConfig
    model: ModelFile
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def asynchronous(self) -> AsyncEngine:
        """The same engine for an event loop. Use one or the other, not both."""
        return AsyncEngine(
            self.core,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            model_name=self.model.name,
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
        where = f"{config.executor} on {config.device}"
        if config.device == "cpu":
            where += f", {torch.get_num_threads()} threads"
        return "\n".join(
            (
                f"Model      {self.model.name} ({spec.architecture}, "
                f"{spec.num_parameters / 1e6:.0f}M parameters)",
                f"Precision  {config.dtype}, KV cache {config.kv_cache_dtype}; {where}",
                f"KV cache   {config.num_kv_blocks:,} blocks of {config.block_size} = "
                f"{config.num_kv_blocks * config.block_size:,} tokens, "
                f"{config.kv_cache_bytes / 2**30:.2f} GiB; prefix caching "
                f"{'on' if config.enable_prefix_caching else 'off'}",
                f"Scheduler  {config.scheduling_policy}; {', '.join(limits)}",
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
    model = open_model(resolve_model(args.model, cache_dir=cache_dir, progress=progress))
    limits = ModelLimits(
        max_position=model.spec.max_position,
        num_parameters=model.spec.num_parameters,
        kv_elements_per_token=model.spec.kv_bytes_per_token(1),
        available_bytes=_available_bytes(device),
    )
    config = resolve(args, limits, device=device)
    if progress is not None:
        progress(f"loading {model.name} ({model.size_bytes / 1e6:,.0f} MB)")
    tokenizer = Tokenizer.from_gguf(model.metadata)
    seeds = random.Random(secrets.randbits(64) if config.seed is None else config.seed)
    core = EngineCore(
        scheduler=_scheduler(config, model.spec),
        executor=_executor(config, model),
        outputs=OutputProcessor(tokenizer),
        clock=clock or MonotonicClock(),
        eos_token_ids=tokenizer.eos_token_ids,
        seeds=seeds,
        debug_invariants=config.debug_invariants,
    )
    return Engine(core, config, model, tokenizer, _chat_template(model, tokenizer))


def _device(args: EngineArgs) -> str:
    has_cuda = torch.cuda.is_available()
    if args.device == "cuda" and not has_cuda:
        raise InvalidConfig("device", "cuda: this PyTorch build finds no CUDA device")
    if args.device == "auto":
        return "cuda" if has_cuda and args.executor == "torch" else "cpu"
    return args.device


def _available_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else available_host_bytes()


def _scheduler(config: EngineConfig, spec: DecoderSpec) -> Scheduler:
    return Scheduler(
        kv=KVCacheManager(
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            watermark=config.watermark,
            reserve_full_prompt=config.reserve_full_prompt,
            hash_secret=secrets.randbits(63),
        ),
        policy=POLICIES[config.scheduling_policy](),
        door=Door(
            max_model_len=config.max_model_len,
            vocab_size=spec.vocab_size,
            max_num_queued_reqs=config.max_num_queued_reqs,
            max_num_queued_tokens=config.max_num_queued_tokens,
        ),
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
    )


def _executor(config: EngineConfig, model: ModelFile) -> Executor:
    weights = model.load_weights()
    blocks, size = config.num_kv_blocks, config.block_size
    if config.executor == "reference":
        return ReferenceExecutor(model.spec, weights, num_blocks=blocks, block_size=size)
    return TorchExecutor(
        model.spec,
        weights,
        num_blocks=blocks,
        block_size=size,
        device=config.device,
        dtype=getattr(torch, config.dtype),
        kv_cache_dtype=getattr(torch, config.kv_cache_dtype),
        num_threads=config.num_threads,
    )


def _chat_template(model: ModelFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = model.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    eos = tokenizer.eos_token_ids
    return ChatTemplate(
        source,
        bos_token=None
        if tokenizer.bos_token_id is None
        else tokenizer.token_text(tokenizer.bos_token_id),
        eos_token=tokenizer.token_text(eos[0]) if eos else None,
    )


class LLM:
    """A model to call from Python: `LLM().generate("…")`. Methods and results are vLLM's.

    Args:
        model: a GGUF file, a directory that holds one, or a name; default: the default model.
        progress: told in a line what is being fetched or loaded.
        options: those of `EngineArgs`, e.g. `dtype="bfloat16"`, `num_kv_blocks=512`.

    Raises `InvalidConfig`, naming the option, or `ModelError`. Not for several threads at once.
    """

    def __init__(
        self, model: str | None = None, *, progress: Progress | None = None, **options: Any
    ) -> None:
        args = EngineArgs.of({"model": model, **options})
        self._engine = build_engine(args, progress=progress)
        self._ids = itertools.count()
        self._filed: dict[str, deque[OutputDelta]] = {}
        """Deltas that were made and not given out yet, of the requests that run."""

    @property
    def config(self) -> EngineConfig:
        """The options in force."""
        return self._engine.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def add_observer(self, observer: Observer) -> None:
        """`observer` is called with every step's record, and the records of ended requests."""
        self._engine.core.add_observer(observer)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Completes all prompts, batched as the scheduler sees fit; results in their order.

        Args:
            prompts: one prompt or a list of them: text, token ids, or a dict as vLLM takes it.
            sampling_params: for all of them, or one for each; default: `SamplingParams()`.
            priority: one for each, for the `priority` policy; lower is more urgent.
            use_tqdm: a progress bar, if the work takes longer than two seconds.

        Raises `InvalidRequest`, naming the field, before anything is run. A request that
        fails later has the finish reason `error`, and its message in `error`.
        """
        requests = self._requests(_prompts(prompts), sampling_params, priority)
        results = {
            item.request_id: RequestOutput(
                item.request_id, text, list(item.prompt_token_ids), [CompletionOutput(0)]
            )
            for item, text in requests
        }
        bar = tqdm(total=len(results), unit="req", disable=not use_tqdm, delay=_PROGRESS_AFTER_S)
        with bar:
            for delta in self._run([item for item, _ in requests]):
                results[delta.request_id].add(delta)
                bar.update(delta.finish_reason is not None)
        return list(results.values())

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of a list of them. See `generate`."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [{"prompt_token_ids": self.chat_tokens(item)} for item in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def chat_tokens(self, messages: Conversation) -> list[int]:
        """The prompt that the model's chat template makes of a conversation."""
        template = self._engine.chat_template
        if template is None:
            raise InvalidRequest("messages", "the model has no chat template; use generate")
        return self.tokenizer.encode(template.render(messages), add_special_tokens=False)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[OutputDelta]:
        """Completes one prompt, a step at a time. Closing the iterator ends the request."""
        yield from self._run([item for item, _ in self._requests([prompt], sampling_params, None)])

    def _requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
    ) -> list[tuple[NewRequest, str | None]]:
        """Each with its prompt's text, where it has one."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        for name, given in (("sampling_params", params), ("priority", priority)):
            if given is not None and len(given) != len(prompts):
                raise InvalidRequest(name, f"{len(given)} for {len(prompts)} prompts")
        priority = priority or [0] * len(prompts)
        requests = []
        for prompt, own, rank in zip(prompts, params, priority, strict=True):
            text, token_ids = self._tokens(prompt)
            new = NewRequest(str(next(self._ids)), token_ids, own, rank)
            requests.append((new, text))
        return requests

    def _tokens(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            known = prompt.get("prompt_token_ids", prompt.get("prompt"))
            if known is None:
                raise InvalidRequest("prompts", "a dict needs `prompt` or `prompt_token_ids`")
            prompt = known
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        return None, [int(token) for token in prompt]

    def _run(self, requests: list[NewRequest]) -> Iterator[OutputDelta]:
        """Runs them to their end; whatever ends this early ends them too.

        Several of these may be open at once: whichever steps the engine files what the others
        get.
        """
        core = self._engine.core
        core.add(requests)
        live = dict.fromkeys(request.request_id for request in requests)
        self._filed.update((request_id, deque()) for request_id in live)
        try:
            while live:
                for request_id in list(live):
                    filed = self._filed[request_id]
                    while filed:
                        delta = filed.popleft()
                        if delta.finish_reason is not None:
                            del live[request_id]
                        yield delta
                if live and not any(self._filed[request_id] for request_id in live):
                    for delta in core.step():
                        self._filed[delta.request_id].append(delta)
        finally:
            for request in requests:
                core.abort(request.request_id)
                del self._filed[request.request_id]


def _prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt is a list of one; a list of integers is one prompt."""
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]
