"""What the scheduler costs: a step of running decodes, and a long prompt that arrives.

Nothing is computed and no executor takes part: what is measured is `schedule()` and `apply()`,
with prefix caching on, the step records kept, and the garbage collector as in a server. In each
step a 16th of the requests begins a block. In the busy figures a 256th ends too, and new ones
take their places.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import median
from typing import TextIO

from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.plan import StepResult
from headway.core.request import Request
from headway.engine.collector import calm_collector
from headway.metrics import StepRecord
from headway.record.setup import SchedulerConfig, build_scheduler

__all__ = ["Cost", "Decodes", "prompt_costs", "run_bench", "step_cost"]

WIDTHS = (1, 64, 256, 1024)
TARGET_STEP_MS = {1: 0.03, 64: 0.12, 256: 0.4, 1024: 1.5}
TARGET_PROMPT_MS = {"hash": 1.5, "miss": 1.0, "hit": 1.0}

_BLOCK_SIZE = 16
_VOCAB_SIZE = 50_000
_BUDGET = 8192
_PROMPT_TOKENS = 128
_OUTPUT_TOKENS = 256
_STEADY_TOKENS = 512
_LONG_PROMPT_TOKENS = 32_768
_RECORDS_KEPT = 256

Timer = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds, over several rounds. The least is what it takes where nothing disturbs."""

    median_ms: float
    least_ms: float

    @classmethod
    def of(cls, rounds_s: Sequence[float]) -> Cost:
        return cls(median(rounds_s) * 1e3, min(rounds_s) * 1e3)


class Decodes:
    """A scheduler with `width` running requests, which began at different times: in each step
    a 16th of them begins a new block, and where they are `busy` a 256th ends and is replaced."""

    def __init__(self, width: int, *, busy: bool = False) -> None:
        outputs = _OUTPUT_TOKENS if busy else _STEADY_TOKENS
        blocks = -(-(_PROMPT_TOKENS + outputs) // _BLOCK_SIZE)
        self._scheduler = build_scheduler(
            SchedulerConfig(
                num_kv_blocks=width * blocks * 5 // 4 + 16,
                block_size=_BLOCK_SIZE,
                max_model_len=blocks * _BLOCK_SIZE,
                max_num_batched_tokens=_BUDGET,
                max_num_seqs=width,
            ),
            vocab_size=_VOCAB_SIZE,
        )
        self._num_requests = 0
        self.num_steps = 0
        self._records: deque[tuple[StepRecord, ...]] = deque(maxlen=_RECORDS_KEPT)
        per_step = _BUDGET // _PROMPT_TOKENS
        for index in range(width):
            # The first ones begin in so many steps, and end one after the other at even
            # distances; and so do those in their places.
            waits = (width - 1 - index) // per_step
            self._add(outputs * (index + 1) // width + waits if busy else outputs)
        for _ in range((outputs if busy else 0) + width // per_step + 1):
            self.step(time.perf_counter)

    @property
    def num_running(self) -> int:
        return self._scheduler.state.num_running

    def step(self, timer: Timer) -> float:
        """One step, and seconds that the scheduler took in it."""
        scheduler = self._scheduler
        self.num_steps += 1
        begin = timer()
        plan = scheduler.schedule(0.0)
        planned = timer()
        tokens = tuple(None if chunk.sample is None else plan.step for chunk in plan.chunks)
        result = StepResult(plan.step, tokens)
        applying = timer()
        outcome = scheduler.apply(result, 0.0)
        self._records.append(outcome.records)
        seconds = timer() - applying + planned - begin
        for _ in outcome.ended:
            self._add(_OUTPUT_TOKENS)
        return seconds

    def _add(self, max_tokens: int) -> None:
        self._num_requests += 1
        # Of different lengths, so that they do not all begin a block in the same step.
        prompt = _prompt(self._num_requests, _PROMPT_TOKENS - self._num_requests % _BLOCK_SIZE)
        params = SamplingParams(max_tokens=max(1, max_tokens))
        self._scheduler.add(
            [Request(f"request-{self._num_requests}", prompt, params, arrival_s=0.0)], 0.0
        )


def step_cost(
    width: int, rounds: int, timer: Timer = time.perf_counter, *, busy: bool = False
) -> Cost:
    """Of a step of `width` decodes. A round is so many steps that each request begins a block
    and, where they are `busy`, some end, the same number in all rounds; it tells their mean."""
    decodes, steps = Decodes(width, busy=busy), _BLOCK_SIZE
    if busy:
        steps = min(_OUTPUT_TOKENS, max(steps, _BLOCK_SIZE * _OUTPUT_TOKENS // width))
    means = []
    for _ in range(rounds):
        if decodes.num_steps + steps > _STEADY_TOKENS and not busy:
            decodes = Decodes(width)
        means.append(sum(decodes.step(timer) for _ in range(steps)) / steps)
    return Cost.of(means)


def prompt_costs(rounds: int, timer: Timer = time.perf_counter) -> dict[str, Cost]:
    """Of a prompt of 32,768 tokens: `door`, to check and queue it; `hash`, the keys of its
    blocks; then the step that admits it whole, where nothing of it is cached (`miss`) and where
    all is (`hit`)."""
    times: dict[str, list[float]] = {"door": [], "hash": [], "miss": [], "hit": []}
    for number in range(rounds):
        config = SchedulerConfig(
            num_kv_blocks=2 * _LONG_PROMPT_TOKENS // _BLOCK_SIZE,
            block_size=_BLOCK_SIZE,
            max_model_len=_LONG_PROMPT_TOKENS + 1,
            max_num_batched_tokens=_LONG_PROMPT_TOKENS,
            max_num_seqs=1,
        )
        scheduler = build_scheduler(config, vocab_size=_VOCAB_SIZE)
        keys = KVCacheManager(num_blocks=1, block_size=_BLOCK_SIZE)
        prompt = _prompt(number, _LONG_PROMPT_TOKENS)
        for name in ("miss", "hit"):
            request = Request(name, prompt, SamplingParams(max_tokens=1), arrival_s=0.0)
            begin = timer()
            scheduler.add([request], 0.0)
            added = timer()
            keys.prompt_keys(request)  # both managers have the same secret
            hashed = timer()
            plan = scheduler.schedule(0.0)
            admitted = timer()
            scheduler.apply(StepResult(plan.step, (0,)), 0.0)
            times["door"].append(added - begin)
            times["hash"].append(hashed - added)
            times[name].append(admitted - hashed)
    return {name: Cost.of(seconds) for name, seconds in times.items()}


def _prompt(number: int, length: int) -> list[int]:
    """Unlike that of any other number."""
    return [(number * 131 + position * 7919) % _VOCAB_SIZE for position in range(length)]


def run_bench(
    *,
    widths: Sequence[int] = WIDTHS,
    rounds: int = 50,
    output_json: str | PathLike[str] | None = None,
    out: TextIO,
    timer: Timer = time.perf_counter,
) -> None:
    """`headway bench scheduler`: measures, prints a table, and writes the figures to a file.

    Args:
        widths: running decodes.
        rounds: how often each is measured.
        output_json: file for `step_ms` and `busy_step_ms` by width and `prompt_32k_ms` for
            hash, miss and hit, all medians; `least` has the least of each.
        out: where the table goes.
        timer: seconds; a clock of processor time leaves out what other processes took.
    """
    calm_collector()
    steps = {width: step_cost(width, rounds, timer) for width in widths}
    busy = {width: step_cost(width, rounds, timer, busy=True) for width in widths}
    prompts = prompt_costs(rounds, timer)
    rows = [
        (f"step of {width} decodes", cost, TARGET_STEP_MS.get(width))
        for width, cost in steps.items()
    ]
    rows += [(f"step of {width}, busy", cost, None) for width, cost in busy.items()]
    rows += [
        (f"32k prompt, {name}", cost, TARGET_PROMPT_MS.get(name)) for name, cost in prompts.items()
    ]
    out.write(f"{'ms':24}{'median':>9}{'least':>9}{'target':>9}\n")
    for name, cost, target in rows:
        goal = "" if target is None else f"{target:9.2f}"
        out.write(f"{name:24}{cost.median_ms:9.3f}{cost.least_ms:9.3f}{goal}\n")
    if output_json is not None:
        figures = {
            "step_ms": {str(width): cost.median_ms for width, cost in steps.items()},
            "busy_step_ms": {str(width): cost.median_ms for width, cost in busy.items()},
            "prompt_32k_ms": {name: cost.median_ms for name, cost in prompts.items()},
            "least": {
                "step_ms": {str(width): cost.least_ms for width, cost in steps.items()},
                "busy_step_ms": {str(width): cost.least_ms for width, cost in busy.items()},
                "prompt_32k_ms": {name: cost.least_ms for name, cost in prompts.items()},
            },
            "rounds": rounds,
        }
        Path(output_json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
