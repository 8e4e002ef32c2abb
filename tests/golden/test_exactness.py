"""Whatever the scheduler does, tokens and logits are those of the request alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from exact import SITUATIONS, Scale, Situation, Suite
from golden.exactness import SCALE, SUBJECTS, Subject
from headway.core.plan import Chunk, StepPlan
from headway.models.spec import DecoderSpec
from headway.models.weights import open_model
from headway.runtime.inputs import OutputRows, output_rows
from headway.runtime.torch import EagerBackend
from tiny import TINY, TINY_SPECS
from tiny_executors import WEIGHTS, one_thread
from tiny_plans import GREEDY_SAMPLE

TINY_SCALE = Scale(block_size=4, shortest=2, longest=30, num_tokens=10, num_targets=6, num_others=4)
CLOSE = 1e-3
"""How far logits may be apart where the bits are not promised."""
BY_NAME = {situation.name: situation for situation in SITUATIONS}
each_situation = pytest.mark.parametrize("situation", SITUATIONS, ids=BY_NAME)


@pytest.fixture(scope="module", params=[s for s in SUBJECTS if s.in_tests], ids=lambda s: s.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.param


@pytest.fixture(scope="module")
def suite(subject: Subject, model_path: Path) -> Iterator[Suite]:
    model = open_model(model_path)
    with subject.suite(model, SCALE, num_layers=subject.test_layers) as suite:
        yield suite


@each_situation
def test_the_default_model(subject: Subject, suite: Suite, situation: Situation) -> None:
    outcome = suite.run(situation)
    assert outcome.num_rows >= len(suite.targets)
    if subject.exact:
        assert outcome.exact
    else:
        assert outcome.largest < CLOSE
        greedy = {target.name for target in suite.targets if target.params["temperature"] == 0}
        assert len(greedy.intersection(outcome.other_tokens)) <= 1  # at a near tie


class OneByOne(EagerBackend):
    """Each token in a forward pass of its own, so that nothing else can matter to it."""

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        copies = StepPlan(plan.step, (), plan.zero_blocks, plan.copies_out, plan.copies_in)
        super().hidden(copies, [], output_rows(copies))
        states, first_rows = [], []
        for chunk, tokens in zip(plan.chunks, known, strict=True):
            first_rows.append(len(states))
            for position, token in enumerate(tokens, chunk.start):
                one = Chunk(chunk.request_id, position, (token,), chunk.block_table, GREEDY_SAMPLE)
                alone = StepPlan(plan.step, (one,))
                states.append(super().hidden(alone, [(token,)], output_rows(alone)))
        return torch.cat(states)[rows.in_batch(np.array(first_rows))]

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.cat([super(OneByOne, self).logits(row[None]) for row in hidden])


def tiny_suite(make: Callable[..., Any] = OneByOne, spec: DecoderSpec = TINY) -> Suite:
    return Suite(spec, partial(make, spec, WEIGHTS[spec.architecture]), TINY_SCALE)


@pytest.fixture(scope="module")
def exact_suite() -> Iterator[Suite]:
    with one_thread():
        yield tiny_suite(spec=TINY_SPECS["everything"])


@each_situation
def test_all_but_the_arithmetic_is_exact(exact_suite: Suite, situation: Situation) -> None:
    """Scheduler, engine, executor and sampler keep every bit, over a backend that does."""
    assert exact_suite.run(situation).exact


class Faulty(OneByOne):
    """Hidden states of which `when` says so are off by one unit in the last place."""

    def __init__(self, when: Callable[[StepPlan, Chunk], object], *args: Any, **sizes: Any) -> None:
        super().__init__(*args, **sizes)
        self._when = when

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        hidden = super().hidden(plan, known, rows)
        for row, index in zip(hidden, rows.chunks.tolist(), strict=True):
            if self._when(plan, plan.chunks[index]):
                row[:] = row.nextafter(torch.tensor(torch.inf))
        return hidden


class Forgetful(OneByOne):
    """Loses a block on its way back from the swap space."""

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        plan = StepPlan(
            plan.step, plan.chunks, plan.zero_blocks, plan.copies_out, plan.copies_in[1:]
        )
        return super().hidden(plan, known, rows)


FAULTS: dict[str, tuple[Callable[[StepPlan, Chunk], object], str]] = {
    "others": (lambda plan, _: len(plan.chunks) > 1, "in a batch"),
    "place in the batch": (lambda plan, chunk: chunk is not plan.chunks[0], "in a batch"),
    "chunks": (lambda _, chunk: chunk.start and chunk.num_tokens > 1, "in chunks of any size"),
    "blocks": (lambda _, chunk: chunk.block_table[0] > 60, "on blocks anywhere"),
    "hits": (lambda _, chunk: chunk.start and chunk.num_tokens > 1, "warm prefix cache"),
    "drafts": (lambda _, chunk: chunk.num_drafts, "with drafts"),
    "swaps": (lambda plan, _: plan.copies_in, "swapped"),
}
"""What should not matter: when it does, and the situation that shows it."""


@pytest.mark.parametrize(
    ("make", "found_by"),
    [
        *((partial(Faulty, when), found_by) for when, found_by in FAULTS.values()),
        (Forgetful, "swapped"),
    ],
    ids=[*FAULTS, "a lost copy"],
)
def test_one_bit_is_noticed(make: Callable[..., Any], found_by: str) -> None:
    with one_thread():
        suite = tiny_suite(make)
        assert suite.run(BY_NAME["alone, again"]).exact
        outcome = suite.run(BY_NAME[found_by])
    assert outcome.num_unequal > 0
    assert not outcome.exact
