"""KV memory that requests hold and do not use; docs/design/memory.md has the figures."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from headway.core.plan import StepPlan
from simulation import Coming, Simulation


@dataclass
class Waste:
    """Sums over all steps, each as long as the others."""

    held: int = 0
    """Slots of blocks that requests hold."""
    used: int = 0
    """Of those, slots whose KV was computed, that step's included."""
    running: int = 0

    def watch(self, simulation: Simulation, plan: StepPlan) -> None:
        holders = [request for request in simulation.requests.values() if request.held is not None]
        self.held += sum(request.held.num_slots for request in holders)
        self.used += sum(request.num_computed_tokens for request in holders)
        self.running += len(holders)

    @property
    def share(self) -> float:
        return 1 - self.used / self.held

    @property
    def mean_context(self) -> float:
        return self.used / self.running


def chats(count: int) -> list[Coming]:
    """Two requests a second, of 256 ± 128 tokens, that get 32 to 160; no prefix is shared, so that
    each slot is one request's."""
    random, at_s, arrivals = Random(7), 0.0, []
    for i in range(count):
        at_s += random.expovariate(2.0)
        arrivals.append(Coming(f"r{i}", at_s, random.randint(128, 384), random.randint(32, 160)))
    return arrivals


@pytest.mark.parametrize(("block_size", "most"), [(16, 0.04), (32, 0.07)])
@pytest.mark.parametrize("num_tokens", [65_536, 2_048], ids=["ample", "tight"])
def test_half_a_block_a_request_is_all_that_is_wasted(
    block_size: int, most: float, num_tokens: int
) -> None:
    waste = Waste()
    simulation = Simulation(
        num_blocks=num_tokens // block_size, block_size=block_size, watch=waste.watch
    )
    simulation.run(chats(60))
    assert len(simulation.ended) == 60
    assert waste.held == sum(step.blocks_used for step in simulation.steps) * block_size
    preempted = sum(sum(step.preemptions.values()) for step in simulation.steps)
    assert (preempted > 0) == (num_tokens == 2_048)
    print(
        f"blocks of {block_size}, {num_tokens} tokens, {preempted} preempted: context "
        f"{waste.mean_context:.0f}, {100 * waste.share:.2f} % held and not used"
    )
    assert waste.mean_context >= 256
    assert 0 < waste.share < most
    # No more than blocks that are not full: half of one for each request.
    assert (waste.held - waste.used) / waste.running == pytest.approx(block_size / 2, rel=0.15)
