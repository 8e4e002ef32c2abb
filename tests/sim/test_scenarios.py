"""What the rules are for, in figures (docs/design/figures.md has them); the clock is virtual."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from headway.core.plan import StepPlan
from headway.core.policies import FairPolicy
from headway.core.request import RequestState
from simulation import Coming, Simulation


def test_s13_i18_fair_shares_between_two_tenants_one_sending_ten_times_as_much() -> None:
    random, arrivals = Random(1), []
    for tenant, rate in (("big", 40.0), ("small", 4.0)):
        at_s = 0.0
        for i in range(int(rate * 15)):
            at_s += random.expovariate(rate)
            size, output = random.randint(20, 200), random.randint(10, 60)
            arrivals.append(Coming(f"{tenant}{i}", at_s, size, output, tenant))
    num_blocks, bound = 128, 2 * max(1 * 200, 2 * 128 * 16)
    gaps, contended = [0.0], Counter[str]()
    since: dict[str, float] = {}

    def watch(simulation: Simulation, plan: StepPlan) -> None:
        policy = simulation.policy_object
        assert isinstance(policy, FairPolicy)
        if len({request.tenant for request in policy}) == 2:
            lead = policy.service["big"] - policy.service["small"]
            since.setdefault("lead", lead)
            gaps.append(abs(lead - since["lead"]))
            for chunk in plan.chunks:
                contended[chunk.request_id.rstrip("0123456789")] += chunk.num_tokens
        else:
            since.clear()

    simulation = Simulation(num_blocks=num_blocks, width=16, policy="fair", watch=watch)
    simulation.run(arrivals)
    print(f"service difference {max(gaps):.0f} of {bound} allowed; {dict(contended)} contended")
    assert max(gaps) <= bound
    # While both wait they are served alike; no step leaves a slot, tokens and blocks unused.
    assert 0.7 < contended["big"] / contended["small"] < 1.4
    idle = [s for s in simulation.steps if s.waiting and s.num_running < 16]
    assert all(set(s.waiting) <= {"budget", "blocks", "watermark", "preempted"} for s in idle)
    assert len(simulation.ended) == len(arrivals)


def stream(seed: int, rate: float, count: int) -> list[Coming]:
    """Prompts of 50 to 450 tokens whose first token is due within 0.5 to 5 s."""
    random, at_s, arrivals = Random(seed), 0.0, []
    for i in range(count):
        at_s += random.expovariate(rate)
        size, due_s = random.randint(50, 450), random.uniform(0.5, 5.0)
        arrivals.append(Coming(f"r{i}", at_s, size, 8, deadline_s=due_s))
    return arrivals


def test_s13_deadline_meets_more_deadlines_than_fcfs_at_a_fifth_above_capacity() -> None:
    count = 400
    everything = Simulation().run(stream(2, 1e9, count))
    capacity = count / everything.clock.now()
    met = {}
    for policy in ("fcfs", "deadline"):
        arrivals = stream(2, 1.2 * capacity, count)
        simulation = Simulation(policy=policy).run(arrivals)
        met[policy] = sum(
            simulation.first_token_after_s(c.name) <= c.deadline_s for c in arrivals if c.deadline_s
        )
    print(f"capacity {capacity:.2f} requests/s; deadlines met of {count}: {met}")
    assert met["deadline"] > 1.2 * met["fcfs"]


TIGHT = [Coming(f"r{i}", 0.05 * i, 60, 200) for i in range(40)]


@pytest.fixture(scope="module")
def tight() -> dict[str, Simulation]:
    """A pool in which four of forty requests fit at their longest."""
    return {
        mode: Simulation(
            num_blocks=70,
            width=16,
            reserve=False,
            caching=False,
            options={"preemption_mode": mode, "num_swap_slots": 400, "max_preemptions": 4},
        ).run(TIGHT)
        for mode in ("recompute", "swap", "auto")
    }


def test_p4_in_a_tight_pool_requests_take_turns_and_the_run_ends(
    tight: dict[str, Simulation],
) -> None:
    for mode, simulation in tight.items():
        requests = simulation.requests.values()
        assert all(r.state is RequestState.FINISHED_LENGTH for r in requests), mode
        most = max(r.num_memory_preemptions for r in requests)
        assert 1 <= most <= 4


def test_p5_swap_recompute_and_auto_are_compared(tight: dict[str, Simulation]) -> None:
    figures = {}
    for mode, simulation in tight.items():
        steps = simulation.steps
        figures[mode] = (
            sum(sum(s.preemptions.values()) for s in steps),
            sum(s.recomputed_tokens for s in steps),
            sum(s.swapped_out_blocks + s.swapped_in_blocks for s in steps),
            simulation.clock.now(),
        )
        print("{}: {} preemptions, {} tokens, {} blocks, {:.2f} s".format(mode, *figures[mode]))
    assert figures["recompute"][1] > 0 == figures["recompute"][2]
    assert figures["swap"][1] == 0 < figures["swap"][2]
    # A token costs 0.5 ms and a block 0.2 ms each way: swapping is the cheaper way, and auto's.
    assert figures["swap"][3] < figures["recompute"][3]
    assert figures["auto"][3] <= 1.02 * figures["swap"][3]


def long_among_short(**options: object) -> Simulation:
    arrivals = [Coming(f"short{i}", 0.2 * i, 40, 20) for i in range(30)]
    arrivals.append(Coming("long", 1.01, 6000, 20))
    return Simulation(**options).run(arrivals)  # type: ignore[arg-type]


def test_s4_short_requests_do_not_wait_for_a_long_prompt() -> None:
    def report(name: str, simulation: Simulation) -> tuple[float, float]:
        shorts = [simulation.first_token_after_s(f"short{i}") for i in range(30)]
        longest_step = max(step.duration_s for step in simulation.steps)
        long_s = simulation.first_token_after_s("long")
        print(
            f"{name}: first token of short ones {sum(shorts) / 30:.3f} s mean, {max(shorts):.3f} s "
            f"at worst; of the long one {long_s:.2f} s; longest step {longest_step:.3f} s"
        )
        return max(shorts), long_s

    whole, _ = report(
        "no chunks", long_among_short(budget=8192, options={"enable_chunked_prefill": False})
    )
    chunked, long_chunked = report("budget 2048", long_among_short(budget=2048))
    capped, long_capped = report(
        "threshold 256",
        long_among_short(budget=2048, options={"long_prefill_token_threshold": 256}),
    )
    assert capped < chunked < whole
    # A few steps: one that is under way, and the one of its own.
    assert capped < 3 * (0.005 + 0.0005 * (256 + 64 * 2))
    assert long_capped < 2.0 * long_chunked


@pytest.mark.parametrize("aging_s", [1.0, 30.0])
def test_s12_i18_priority_with_aging_bounds_the_wait_under_overload(aging_s: float) -> None:
    random, at_s, arrivals = Random(3), 0.0, [Coming("low", 0.0, 100, 8, priority=3)]
    arrivals += [Coming(f"first{i}", 0.0, 200, 8, priority=0) for i in range(20)]
    for i in range(300):
        at_s += random.expovariate(12.0)
        arrivals.append(Coming(f"urgent{i}", at_s, 200, 8, priority=0))
    simulation = Simulation(
        width=4,
        policy="priority",
        policy_options={"aging_s": aging_s},
        options={"preempt_for_priority": False},
    ).run(arrivals)
    low = simulation.ended["low"].first_scheduled_s
    assert low is not None
    ahead = [c for c in arrivals if c.priority == 0 and c.at_s < 3 * aging_s]
    print(f"aging {aging_s} s: waited {low:.2f} s behind {len(ahead)} that may go first")
    for record in simulation.ended.values():
        if record.priority == 0 and record.arrival_s >= 3 * aging_s:
            assert record.first_scheduled_s is not None
            assert record.first_scheduled_s >= low
