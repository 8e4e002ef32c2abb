"""The scheduler under everything that can happen to it; what must hold is in `Trial`.

The soak (`test_soak.py`) tries far more; this machine finds the shortest way to a failure.
"""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headway.sim.situations import random_arrival, random_setup
from headway.sim.trial import Trial

RANDOMS = st.randoms(use_true_random=False)
FAULT = st.sampled_from([False] * 9 + [True])


class SchedulerMachine(RuleBasedStateMachine):
    trial: Trial

    @initialize(random=RANDOMS)
    def start(self, random: Random) -> None:
        setup = random_setup(random)
        note(repr(setup))
        self.trial = Trial(setup)

    @rule(random=RANDOMS, count=st.integers(1, 5))
    def arrive(self, random: Random, count: int) -> None:
        for _ in range(count):
            arrival = random_arrival(random, self.trial.setup)
            note(repr(arrival))
            self.trial.add(arrival)

    @precondition(lambda self: len(self.trial.in_flight) < self.trial.setup.depth)
    @rule(fails=FAULT)
    def plan(self, fails: bool) -> None:
        self.trial.plan(fails=fails and self.trial.setup.fault_rate > 0)

    @precondition(lambda self: self.trial.in_flight)
    @rule(nan=FAULT)
    def collect(self, nan: bool) -> None:
        self.trial.collect(nan=nan and self.trial.setup.fault_rate > 0)

    @rule(steps=st.integers(1, 25))
    def several_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.trial.step()

    @precondition(lambda self: self.trial.live)
    @rule(index=st.integers(0, 1000))
    def abort(self, index: int) -> None:
        live = self.trial.live
        self.trial.abort(live[index % len(live)])

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.trial.wait(seconds)

    def teardown(self) -> None:
        if hasattr(self, "trial"):
            self.trial.finish()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
