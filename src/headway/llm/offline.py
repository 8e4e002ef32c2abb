"""`LLM`: a model to call from Python, without a server."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

from tqdm import tqdm

from headway.config import EngineArgs, EngineConfig
from headway.core.params import SamplingParams
from headway.engine.outputs import NewRequest, OutputDelta, RequestOutput, fan_out
from headway.errors import InvalidRequest
from headway.llm.build import build_engine
from headway.llm.prompts import Conversation, Prompt, as_conversations, as_prompts, parse_prompt
from headway.metrics import Observer
from headway.models.sources import Progress
from headway.text.chat_prompt import chat_tokens
from headway.text.tokenizer import Tokenizer

__all__ = ["LLM"]

_PROGRESS_AFTER_S = 2.0


class LLM:
    """A model to call from Python: `LLM().generate("…")`. Methods and results are vLLM's.

    Args:
        model: a GGUF file, a directory that holds one or a Hugging Face model, a name, or
            `org/name` of the hub; default: the default model.
        progress: told in a line what is being fetched or loaded, and what the recipe comes to.
        options: those of `EngineArgs`, e.g. `dtype="bfloat16"`, `num_kv_blocks=512`.

    Raises `InvalidConfig`, naming the option, or `ModelError`. Not for several threads at once.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        args = EngineArgs.of({"model": model, **options})
        self._engine = build_engine(args, progress=progress)
        if progress is not None and self._engine.recipe:
            progress(f"recipe {'; '.join(self._engine.recipe)}")
        # A recording is whole only with its end: when this object goes, or the process ends.
        weakref.finalize(self, self._engine.core.close)
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

    def get_default_sampling_params(self) -> SamplingParams:
        """What holds where none are given: the model's own, if the option `generation_config`
        is auto and it has any, else `SamplingParams()`."""
        return SamplingParams(**self._engine.sampling_defaults)

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
            sampling_params: for all of them, or one for each; default:
                `get_default_sampling_params()`.
            priority: one for each, for the `priority` policy; lower is more urgent.
            use_tqdm: a progress bar, if the work takes longer than two seconds.

        Raises `InvalidRequest`, naming the field, before anything is run. A request that
        fails later has the finish reason `error`, and its message in `error`.
        """
        asked = self._requests(as_prompts(prompts), sampling_params, priority)
        results = [RequestOutput.of(request, text) for request, text in asked]
        requests = fan_out([request for request, _ in asked])
        places = [(result, index) for result in results for index in range(len(result.outputs))]
        place = dict(zip((request.request_id for request in requests), places, strict=True))
        bar = tqdm(total=len(requests), unit="req", disable=not use_tqdm, delay=_PROGRESS_AFTER_S)
        with bar:
            for delta in self._run(requests):
                result, index = place[delta.request_id]
                result.add(index, delta, self.tokenizer)
                bar.update(delta.finish_reason is not None)
        return results

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of a list of them. See `generate`."""
        prompts = [self.chat_tokens(item) for item in as_conversations(messages)]
        return self.generate(prompts, sampling_params, priority=priority, use_tqdm=use_tqdm)

    def chat_tokens(self, messages: Conversation) -> list[int]:
        """The prompt that the model's chat template makes of a conversation."""
        template = self._engine.chat_template
        if template is None:
            raise InvalidRequest("messages", "the model has no chat template; use generate")
        return chat_tokens(template, self.tokenizer, messages)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> Iterator[OutputDelta]:
        """Completes one prompt, a step at a time. Closing the iterator ends the request.

        What is wrong with the request's form is raised at once, what the engine refuses when
        the first delta is asked for.
        """
        [(request, _)] = self._requests([prompt], sampling_params, [priority])
        if request.params.n > 1:
            raise InvalidRequest("n", "is 1 in a stream; use generate for more")
        return self._run([request])

    def _requests(
        self,
        prompts: Sequence[object],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
    ) -> list[tuple[NewRequest, str | None]]:
        """Each with its prompt's text, where it has one."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.get_default_sampling_params()] * len(prompts)
        for name, given in (("sampling_params", params), ("priority", priority)):
            if given is not None and len(given) != len(prompts):
                raise InvalidRequest(name, f"{len(given)} for {len(prompts)} prompts")
        for item in params:
            if not isinstance(item, SamplingParams):
                raise InvalidRequest("sampling_params", f"must be SamplingParams, not {item!r}")
        priority = priority or [0] * len(prompts)
        requests = []
        for prompt, own, rank in zip(prompts, params, priority, strict=True):
            parsed = parse_prompt(prompt)
            ids = parsed.token_ids
            if ids is None:
                ids = self.tokenizer.encode(parsed.text or "")
            new = NewRequest(str(next(self._ids)), ids, own, rank, parsed.cache_salt)
            requests.append((new, parsed.text))
        return requests

    def _run(self, requests: list[NewRequest]) -> Iterator[OutputDelta]:
        """Runs them to their end; whatever ends this early ends them too.

        Several of these may be open at once: whichever steps the engine files what the others
        get.
        """
        core = self._engine.core
        core.add(requests, core.compile(requests).result())
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
