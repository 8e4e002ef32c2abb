"""What makes the engine of a simulated server's child process: the real scheduler and the real
step loop over an executor that computes nothing, and takes its time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace

from headway.clock import MonotonicClock
from headway.config import EngineArgs, EngineConfig, ModelLimits, resolve
from headway.core.plan import StepPlan, StepResult
from headway.engine.core import EngineCore
from headway.engine.exactness import Exactness
from headway.engine.outputs import OutputProcessor
from headway.engine.pace import Pace
from headway.engine.threaded import ThreadedExecutor
from headway.record.setup import SchedulerConfig, build_scheduler
from headway.server.process.child import Built
from headway.sim.executor import LinearCost, SimulatedExecutor
from server.tiny_core import AlphabetTokenizer

__all__ = ["COST", "EXACTNESS", "FACTORY", "MAX_POSITION", "RealTimeExecutor", "build"]

FACTORY = "simulated_child:build"
MAX_POSITION = 4096
COST = LinearCost(step_s=0.04, token_s=0.0002, block_copy_s=0.001)
"""Of every step: slow enough that a busy machine keeps up with a dozen engines."""
EXACTNESS = Exactness(False, "not probed")

_LIMITS = ModelLimits(
    max_position=MAX_POSITION,
    num_parameters=1,
    kv_elements_per_token=1,
    available_bytes=1 << 30,
)


class RealTimeExecutor:
    """A step of the simulated executor that lasts as long as it costs. Its thread sleeps."""

    def __init__(self, inner: SimulatedExecutor) -> None:
        self._inner = inner

    def submit(self, plan: StepPlan) -> tuple[tuple[StepResult, float], float]:
        began_s = time.monotonic()
        handle = self._inner.submit(plan)
        return handle, began_s + handle[1]

    def collect(self, handle: tuple[tuple[StepResult, float], float]) -> StepResult:
        step, end_s = handle
        time.sleep(max(0.0, end_s - time.monotonic()))
        return self._inner.collect(step)

    def block_copy_s(self) -> float:
        return self._inner.block_copy_s()


def build(args: EngineArgs, *, progress: Callable[[str], None]) -> Built:
    """As `headway.llm.build_engine` composes an engine, of all options that a scheduler has. What
    the vocabulary is made of is ASCII: no token is half a character, and none ends an answer."""
    config = resolve(args, _LIMITS, device="cpu")
    tokenizer = AlphabetTokenizer()
    fields = {name: getattr(config, name) for name in SchedulerConfig.__struct_fields__}
    setup = SchedulerConfig(**{**fields, "fair_weights": dict(config.fair_weights)})
    executor = ThreadedExecutor(lambda: _executor(config, tokenizer.vocab_size))
    core = EngineCore(
        scheduler=build_scheduler(setup, vocab_size=tokenizer.vocab_size),
        executor=executor,
        outputs=OutputProcessor(tokenizer),
        clock=MonotonicClock(),
        eos_token_ids=(),
        seeds=random.Random(0),
        queue_timeout_s=config.queue_timeout_s,
        async_scheduling=True,
        pace=Pace(executor.ended),
    )
    return SimpleNamespace(
        core=core, config=config, exactness=EXACTNESS, banner=lambda: "Simulated"
    )


def _executor(config: EngineConfig, vocab_size: int) -> RealTimeExecutor:
    return RealTimeExecutor(
        SimulatedExecutor(
            clock=None,
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            vocab_size=vocab_size,
            cost=COST,
        )
    )
