"""What makes the engine of a test's child process: the tiny engine, at a pace that a test can
follow, whose executor does on command what executors do at their worst."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from headway.config import EngineArgs
from headway.core.plan import Executor, StepPlan, StepResult
from headway.engine.exactness import Exactness
from headway.errors import InvalidConfig
from headway.server.process.child import Built
from server.tiny_core import ALPHABET, MAX_MODEL_LEN, NUM_BLOCKS, tiny_core, tiny_executor

__all__ = ["DIE", "FACTORY", "HANG", "build"]

FACTORY = "server.tiny_child:build"
HANG, DIE = ALPHABET[-1], ALPHABET[-2]
"""In a prompt: its step never ends; it takes the process with it."""

_STEP_S, _SLOW_STEP_S = 0.01, 0.4


class FaultyExecutor:
    """Takes its time, and looks for `HANG` and `DIE` in prompts."""

    def __init__(
        self, inner: Executor, is_slow: Callable[[], bool], hangs: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._is_slow = is_slow
        self._hangs = hangs
        self._never = threading.Event()

    def submit(self, plan: StepPlan) -> object:
        for chunk in plan.chunks:
            if chunk.start == 0:
                text = "".join(ALPHABET[token] for token in chunk.token_ids)
                if HANG in text:
                    self._hangs()
                    self._never.wait()
                if DIE in text:
                    os._exit(3)
        self._never.wait(_SLOW_STEP_S if self._is_slow() else _STEP_S)
        return self._inner.submit(plan)

    def collect(self, handle: object) -> StepResult:
        return self._inner.collect(handle)

    def block_copy_s(self) -> float:
        return self._inner.block_copy_s()


def build(args: EngineArgs, *, progress: Callable[[str], None]) -> Built:
    """`args.model` says what is special: it is `never` ready, starts `once` for each path, is
    `slow`, `bad` or `dies`. `slow:PATH` is slow, and does not get ready, while there is that file:
    so a test says how long a request runs on, or an engine loads. `hangs:PATH` makes that file
    when a step hangs: so a test knows that it does."""
    what, _, path = (args.model or "").partition(":")

    def is_slow() -> bool:
        return what == "slow" and (not path or Path(path).exists())

    def hangs() -> None:
        if what == "hangs":
            Path(path).touch()

    while path and is_slow():
        threading.Event().wait(_STEP_S)
    if what == "never":
        progress("loading, for ever")
        threading.Event().wait()
    if what == "dies":
        raise RuntimeError("no")
    if what == "bad" or (what == "once" and Path(path).exists()):
        raise InvalidConfig("max_model_len", "there is no room for it")
    if what == "once":
        Path(path).touch()
    core = tiny_core(
        FaultyExecutor(tiny_executor(), is_slow, hangs),
        max_num_seqs=min(args.tuning.max_num_seqs, 32),
        max_num_queued_reqs=args.tuning.max_num_queued_reqs,
    )
    config = SimpleNamespace(
        max_model_len=MAX_MODEL_LEN,
        block_size=16,
        num_kv_blocks=NUM_BLOCKS,
        kv_cache_bytes=NUM_BLOCKS,
        kv_cache_dtype="float32",
        enable_prefix_caching=True,
    )
    exactness = Exactness(False, "not probed")
    return SimpleNamespace(core=core, config=config, exactness=exactness, banner=lambda: "Tiny")
