"""Static batching: nobody joins a batch that runs."""

from __future__ import annotations

from functools import partial

import pytest

from headway.bench.experiments import static_policy
from headway.bench.experiments.static_policy import StaticBatchingPolicy
from headway.core.plan import StepPlan
from headway.core.policies import POLICIES
from headway.record.policies import make_policy
from simulation import Coming, Simulation


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    arrivals: list[Coming],
    *,
    batch_size: int = 128,
    **options: object,
) -> tuple[Simulation, list[set[str]]]:
    """The simulation, and who ran in each step."""
    steps: list[set[str]] = []

    def watch(_simulation: Simulation, plan: StepPlan) -> None:
        steps.append({chunk.request_id for chunk in plan.chunks})

    policy = partial(StaticBatchingPolicy, batch_size)
    monkeypatch.setattr("simulation.POLICIES", {**POLICIES, "static": policy})
    simulation = Simulation(policy="static", watch=watch, **options).run(arrivals)
    simulation.scheduler.check()
    return simulation, steps


def batches(steps: list[set[str]], ended: set[str]) -> list[set[str]]:
    """Requests joined by having been under way at the same time; fails where batches overlap."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, names in enumerate(steps):
        for name in names:
            first.setdefault(name, index)
            last[name] = index
    assert set(first) == ended
    found: list[set[str]] = []
    end = -1
    for name in sorted(first, key=lambda each: first[each]):
        if first[name] > end:
            found.append(set())
        found[-1].add(name)
        end = max(end, last[name])
    return found


def test_who_comes_while_a_batch_runs_waits_until_all_of_it_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = [Coming(f"early {i}", 0.0, 20, 5 + 10 * i) for i in range(4)]
    late = [Coming(f"late {i}", 0.02, 20, 5) for i in range(3)]
    simulation, steps = simulate(monkeypatch, [*early, *late])
    assert batches(steps, set(simulation.ended)) == [
        {each.name for each in early},
        {each.name for each in late},
    ]


def test_a_batch_is_admitted_over_as_many_steps_as_its_prompts_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its first members end before its last are admitted."""
    arrivals = [Coming(f"r{i}", 0.0, 100, 1 + 10 * i) for i in range(8)]
    simulation, steps = simulate(monkeypatch, arrivals, budget=128)
    assert len(steps[0]) < 8
    assert batches(steps, set(simulation.ended)) == [{each.name for each in arrivals}]


def test_a_place_that_comes_free_stays_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = [Coming(f"r{i}", 0.0, 10, 5 + 5 * i) for i in range(7)]
    simulation, steps = simulate(monkeypatch, arrivals, batch_size=3)
    found = batches(steps, set(simulation.ended))
    assert found == [{"r0", "r1", "r2"}, {"r3", "r4", "r5"}, {"r6"}]


def test_who_is_preempted_stays_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    early = [Coming(f"early {i}", 0.0, 30, 60) for i in range(6)]
    late = [Coming("late", 0.02, 10, 5)]
    simulation, steps = simulate(monkeypatch, [*early, *late], num_blocks=16, block_size=16)
    assert sum(step.preemptions.get("memory", 0) for step in simulation.steps)
    assert batches(steps, set(simulation.ended)) == [{each.name for each in early}, {"late"}]


def test_it_can_be_named_on_the_command_line() -> None:
    name = f"{static_policy.__name__}:{StaticBatchingPolicy.__name__}"
    assert isinstance(make_policy(name), StaticBatchingPolicy)


def test_nobody_who_waits_is_no_batch() -> None:
    policy = StaticBatchingPolicy()
    assert list(policy.order(0.0, lambda request: 0)) == []
