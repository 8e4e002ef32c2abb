"""Whether a request's tokens and logits are those that it gets alone, whatever the scheduler does.

A `Suite` runs some requests alone, then in each of `SITUATIONS`, in a whole engine over one
executor, whose cache holds what the situation before left there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engines import TestEngine
from headway.core.plan import Chunk
from headway.core.request import Request
from headway.metrics import StepRecord
from headway.models.spec import DecoderSpec
from headway.record.setup import SchedulerConfig
from headway.runtime.torch import Backend, TorchExecutor
from watched import Watched

__all__ = ["SITUATIONS", "Outcome", "Scale", "Situation", "Suite", "Target"]

MAX_SEQS = 12
WAYS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.2, "top_p": 0.9, "logit_bias": {3: 2.0}},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 1.0, "min_p": 0.05, "seed": 7},
)


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    block_size: int
    shortest: int
    longest: int
    """Tokens of a prompt."""
    num_tokens: int
    """That each request is to output."""
    num_targets: int
    num_others: int

    @property
    def longest_blocks(self) -> int:
        return -(-(self.longest + self.num_tokens) // self.block_size)

    @property
    def num_blocks(self) -> int:
        """Enough for everybody at once."""
        return (self.num_targets + self.num_others) * self.longest_blocks

    @property
    def few_blocks(self) -> int:
        """So few that requests are preempted."""
        return self.longest_blocks + max(3, self.longest_blocks // 2)


@dataclass(frozen=True)
class Target:
    """A request whose output is compared."""

    name: str
    prompt: list[int]
    params: Mapping[str, Any]


@dataclass
class Answer:
    """What a target comes to alone."""

    tokens: list[int]
    """The prompt's too."""
    rows: dict[int, Tensor]
    """Position of a token → the logits that it was drawn from, [vocab]."""


@dataclass(frozen=True)
class Situation:
    """What the scheduler does to the requests."""

    name: str
    happened: Callable[[Sequence[StepRecord]], object]
    """Whether the steps show that it did."""
    others: bool = True
    """They share the engine with others."""
    cut: bool = False
    """Each step has another budget of tokens; else there is always enough."""
    placed: bool = False
    """Their blocks lie anywhere."""
    rounds: int = 1
    """How often all of them are run, one time after another."""
    drafts: bool = False
    in_flight: bool = False
    """The next plan is made while a step runs."""
    few_blocks: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """How a situation compared with alone."""

    situation: str
    num_rows: int = 0
    """Rows of logits that were compared."""
    num_unequal: int = 0
    """Those of them that are not the same bits."""
    largest: float = 0.0
    """The largest difference of two logits."""
    other_tokens: list[str] = field(default_factory=list)
    """Targets whose output is another."""
    num_steps: int = 0

    @property
    def exact(self) -> bool:
        return self.num_rows > 0 and not self.num_unequal and not self.other_tokens

    def add(self, row: Tensor, alone: Tensor) -> None:
        self.num_rows += 1
        if not torch.equal(row.view(torch.int32), alone.view(torch.int32)):
            self.num_unequal += 1
            self.largest = max(self.largest, float((row - alone).abs().max()))


def _several(steps: Sequence[StepRecord]) -> bool:
    return max(len(step.batch) for step in steps) > 3


def _hits(steps: Sequence[StepRecord]) -> int:
    return sum(entry.hit_tokens for step in steps for entry in step.batch)


def _recomputed(steps: Sequence[StepRecord]) -> int:
    return sum(step.recomputed_tokens for step in steps)


def _swapped(steps: Sequence[StepRecord]) -> int:
    return sum(step.swapped_in_blocks for step in steps)


def _drafted(steps: Sequence[StepRecord]) -> bool:
    given, accepted = (
        sum(getattr(step, name) for step in steps)
        for name in ("num_draft_tokens", "num_accepted_tokens")
    )
    return 5 < accepted < given - 5


def _cut(steps: Sequence[StepRecord]) -> bool:
    """There are chunks of many sizes."""
    return len({entry.num_tokens for step in steps for entry in step.batch}) > 5


def _in_flight(steps: Sequence[StepRecord]) -> bool:
    return any(chunk.follows_in_flight for step in steps for chunk in step.chunks)


_ALL = {"cut": True, "placed": True, "rounds": 2, "few_blocks": True}
_UNCACHED = {"enable_prefix_caching": False}

SITUATIONS = (
    Situation("alone, again", lambda steps: not _several(steps), others=False, config={
        **_UNCACHED, "max_num_seqs": 1}),
    Situation("in a batch", _several, config=_UNCACHED),
    Situation("in chunks of any size", _cut, cut=True, config=_UNCACHED),
    Situation("on blocks anywhere", _several, placed=True, config=_UNCACHED),
    Situation("cold prefix cache", _hits),
    Situation("warm prefix cache", _hits, rounds=2, placed=True),
    Situation("recomputed", _recomputed, few_blocks=True, config=_UNCACHED),
    Situation("swapped", _swapped, few_blocks=True, config={
        **_UNCACHED, "preemption_mode": "swap"}),
    Situation("with drafts", _drafted, drafts=True),
    Situation("two plans in flight", _in_flight, in_flight=True),
    Situation("all of it, recomputed", _recomputed, **_ALL, drafts=True),
    Situation("all of it, swapped", _swapped, **_ALL, drafts=True, config={
        "preemption_mode": "swap"}),
)  # fmt: skip


class Suite:
    """The requests, and what each comes to alone on this backend.

    Args:
        seed: of the prompts, the others, and of what happens at random.
    """

    def __init__(
        self, spec: DecoderSpec, make: Callable[..., Backend], scale: Scale, *, seed: int = 0
    ) -> None:
        self._scale = scale
        self._vocab_size = spec.vocab_size
        self._seed = seed
        self._rng = random.Random(seed)
        self._watched = Watched(
            make(
                num_blocks=scale.num_blocks,
                block_size=scale.block_size,
                num_swap_blocks=scale.num_blocks,
            )
        )
        self._executor = TorchExecutor(spec, self._watched)
        self.targets = list(self._targets())
        self.answers = {target.name: self._alone(target) for target in self.targets}

    def run(self, situation: Situation) -> Outcome:
        """Fails where the situation did not come about."""
        outcome = Outcome(situation.name)
        self._rng = random.Random(f"{self._seed} {situation.name}")
        comparison = Comparison(self.answers, outcome)
        self._watched.see = comparison.see
        self._watched.place(self._rng if situation.placed else None)
        engine = self._engine(situation)
        for number in range(situation.rounds):
            self._run_all(engine, situation, number)
        assert set(engine.reasons.values()) == {"length"}
        assert situation.happened(engine.steps), f"{situation.name}: that did not happen"
        outcome.num_steps = len(engine.steps)
        for target in self.targets:
            answer = self.answers[target.name].tokens[len(target.prompt) :]
            outputs = [engine.tokens[f"{target.name}@{i}"] for i in range(situation.rounds)]
            if any(output != answer for output in outputs):
                outcome.other_tokens.append(target.name)
        return outcome

    def _targets(self) -> Iterator[Target]:
        """Some begin alike, over more than a block. Most need another block soon, so that there
        is somebody to preempt."""
        scale, rng = self._scale, self._rng
        spread = max(1, scale.num_targets - 1)
        lengths = [
            scale.shortest + (scale.longest - scale.shortest) * i // spread
            for i in range(scale.num_targets)
        ]
        common = self._tokens(scale.longest)
        for i, length in enumerate(lengths):
            if i > 1:
                length += -(length + rng.randint(0, scale.num_tokens // 2)) % scale.block_size
            length = min(length, scale.longest)
            num_common = length - rng.randint(1, scale.block_size) if i % 2 else 0
            prompt = common[: max(0, num_common)]
            prompt += self._tokens(length - len(prompt))
            yield Target(str(i), prompt, {"seed": i, **WAYS[i % len(WAYS)]})

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]

    def _alone(self, target: Target) -> Answer:
        rows: dict[int, Tensor] = {}

        def see(chunk: Chunk, known: Sequence[int], offset: int, row: Tensor) -> None:
            rows[chunk.start + offset + 1] = row

        self._watched.see = see
        engine = self._engine(Situation("alone", bool, config=_UNCACHED))
        self._add(engine, target, 0)
        engine.run()
        assert sorted(rows) == [len(target.prompt) + i for i in range(self._scale.num_tokens)]
        return Answer(target.prompt + engine.tokens[f"{target.name}@0"], rows)

    def _engine(self, situation: Situation) -> TestEngine:
        scale = self._scale
        num_blocks = scale.few_blocks if situation.few_blocks else scale.num_blocks
        config = SchedulerConfig(
            num_kv_blocks=num_blocks,
            block_size=scale.block_size,
            max_model_len=scale.longest_blocks * scale.block_size,
            max_num_batched_tokens=scale.num_blocks * scale.block_size,
            max_num_seqs=MAX_SEQS,
            watermark=0.0,
            reserve_full_prompt=False,
            num_swap_blocks=scale.num_blocks,
        )
        return TestEngine(
            executor=self._executor,
            config=config.with_overrides(situation.config),
            vocab_size=self._vocab_size,
            async_scheduling=situation.in_flight,
            speculator=Prophet(self) if situation.drafts else None,  # type: ignore[arg-type]
        )

    def _add(self, engine: TestEngine, target: Target, number: int) -> None:
        options = {"max_tokens": self._scale.num_tokens, "ignore_eos": True, **target.params}
        engine.add(f"{target.name}@{number}", target.prompt, **options)

    def _run_all(self, engine: TestEngine, situation: Situation, number: int) -> None:
        """They arrive in any order, one by one."""
        rng, arriving = self._rng, list(self.targets)
        for i in range(self._scale.num_others * situation.others):
            prompt = self._tokens(rng.randint(1, self._scale.longest))
            params = {"seed": rng.randrange(100), **rng.choice(WAYS)}
            arriving.append(Target(f"other {i}", prompt, params))
        rng.shuffle(arriving)
        while arriving or engine.core.has_work:
            while arriving and (rng.random() < 0.6 or not engine.core.has_work):
                self._add(engine, arriving.pop(), number)
            if situation.cut:
                most = max(40, self._scale.longest)
                engine.core._scheduler._budget = rng.randint(MAX_SEQS, most)
            engine.step()

    def guesses(self, request: Request) -> list[int]:
        """The next tokens of a request, if it is a target, one or none of them wrong."""
        count = self._rng.randint(0, 6)
        answer = self.answers.get(request.request_id.partition("@")[0])
        known = request.token_ids
        if answer is None or answer.tokens[: len(known)] != list(known):
            return self._tokens(count)
        right = answer.tokens[len(known) : len(known) + count]
        if right and self._rng.random() < 0.6:
            right[self._rng.randrange(len(right))] = self._rng.randrange(self._vocab_size)
        return right


class Prophet:
    """In the place of a `Speculator`: its drafts are often right."""

    engaged = True

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    def propose(self, requests: Iterable[Request]) -> Mapping[str, Sequence[int]]:
        return {request.request_id: self._suite.guesses(request) for request in requests}

    def observe(self, *_: object) -> None:
        pass


class Comparison:
    """Holds the logits of tokens that are sampled against those of the answers."""

    def __init__(self, answers: Mapping[str, Answer], outcome: Outcome) -> None:
        self._answers = answers
        self._outcome = outcome
        self._left: set[str] = set()
        """Requests whose known tokens are no longer the answer's."""

    def see(self, chunk: Chunk, known: Sequence[int], offset: int, row: Tensor) -> None:
        answer = self._answers.get(chunk.request_id.partition("@")[0])
        if answer is None or chunk.request_id in self._left:
            return
        expected = answer.tokens[chunk.start : chunk.start + offset + 1]
        if list(known[: offset + 1]) == expected:
            alone = answer.rows.get(chunk.start + offset + 1)
            if alone is not None:  # else a draft goes beyond the end
                self._outcome.add(row, alone)
        elif offset < len(known) - chunk.num_drafts:
            self._left.add(chunk.request_id)  # not for a wrong draft
