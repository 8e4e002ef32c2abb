"""The scheduler under everything that can happen to it, checked after every call.

The simulated executor answers with a function of what is in the KV slots that a chunk reads,
so a token that is skipped, repeated, or read from another's block ends in a wrong output.
"""

from __future__ import annotations

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driver import Driver
from headway.core.request import FinishReason
from headway.errors import QueueFull

VOCAB = 40
PREFIXES = [[(7 * i + 3 * k) % VOCAB for i in range(40)] for k in range(3)]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(5, 20),
        block_size=st.sampled_from([2, 4]),
        width=st.integers(1, 6),
        spare_budget=st.integers(0, 20),
        policy=st.sampled_from(["fcfs", "priority"]),
        watermark=st.sampled_from([0.0, 0.1, 0.3]),
        caching=st.booleans(),
        reserve=st.booleans(),
        chunked=st.booleans(),
        threshold=st.sampled_from([0, 3]),
        max_reqs=st.sampled_from([None, 4]),
        depth=st.integers(1, 2),
    )
    def start(
        self, num_blocks, block_size, width, spare_budget, chunked, threshold, depth, **options
    ):  # type: ignore[no-untyped-def]
        length = min(num_blocks * block_size, 48)
        budget = width + spare_budget
        if not chunked:
            budget, threshold = max(budget, length), 0
        self.d = Driver(
            num_blocks=num_blocks,
            block_size=block_size,
            width=width,
            budget=budget,
            max_model_len=length,
            chunked=chunked,
            threshold=threshold,
            vocab_size=VOCAB,
            **options,
        )
        self.depth = depth
        self.accepted: set[str] = set()

    @rule(
        arrivals=st.lists(
            st.fixed_dictionaries(
                {
                    "prefix": st.integers(0, 2),
                    "shared": st.integers(0, 20),
                    "own": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
                    "max_tokens": st.sampled_from([0, 1, 2, 6, 12, 30]),
                    "priority": st.integers(0, 3),
                    "salt": st.sampled_from([None, None, None, "s"]),
                    "stops": st.sampled_from([False, False, False, True]),
                    "rows": st.sampled_from([None, None, 0]),
                }
            ),
            min_size=1,
            max_size=5,
        )
    )
    def arrive(self, arrivals):  # type: ignore[no-untyped-def]
        for arrival in arrivals:
            self.add(**arrival)

    def add(self, prefix, shared, own, max_tokens, priority, salt, stops, rows):  # type: ignore[no-untyped-def]
        room = self.d.door.max_model_len - len(own) - 1
        name = f"r{len(self.d.requests)}"
        try:
            self.d.add(
                name,
                PREFIXES[prefix][: min(shared, room)] + own,
                max_tokens=max_tokens,
                priority=priority if self.d.policy == "priority" else 0,
                salt=salt,
                stop_token_ids=[3, 4] if stops else [],
                prompt_logprobs=rows,
            )
            self.accepted.add(name)
        except QueueFull:
            assert self.d.door.num_queued_reqs == 4

    @precondition(lambda self: len(self.d.in_flight) < self.depth)
    @rule(fails=st.sampled_from([False] * 9 + [True]))
    def plan(self, fails):  # type: ignore[no-untyped-def]
        plan = self.d.plan(fails=fails)
        assert plan.num_tokens <= self.d.budget
        assert len(plan.chunks) <= self.d.width
        if not self.d.in_flight:
            assert bool(plan.chunks) == (
                self.d.scheduler.num_running + self.d.scheduler.num_waiting > 0
            )

    @precondition(lambda self: self.d.in_flight)
    @rule(bad=st.sampled_from([None] * 9 + [0]))
    def collect(self, bad):  # type: ignore[no-untyped-def]
        plan, handle = self.d.in_flight[0]
        samples = handle is not None and plan.chunks[0].sample is not None
        self.d.collect({bad: "NaN"} if bad is not None and samples else None)

    @rule(steps=st.integers(1, 25))
    def several_steps(self, steps):  # type: ignore[no-untyped-def]
        for _ in range(steps):
            while len(self.d.in_flight) < self.depth and self.d.plan().chunks:
                pass
            self.d.collect()

    @rule(data=st.data())
    def abort(self, data):  # type: ignore[no-untyped-def]
        live = [name for name in sorted(self.accepted) if not self.d.requests[name].finished]
        assume(live)
        assert self.d.abort(data.draw(st.sampled_from(live)))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "d"):
            self.d.scheduler.check()
            for name in self.accepted:
                output = self.d.output(name)
                assert output == self.d.expected(name)[: len(output)], name
                self.check_rows(name)

    def check_rows(self, name: str) -> None:
        """Rule K3: each row of the prompt once, in order, and all before the first token."""
        request, rows = self.d.requests[name], self.d.rows.get(name, [])
        foretold = self.d.prompts[name][1:] if request.params.prompt_logprobs is not None else []
        assert rows == foretold[: len(rows)], name
        ended_well = request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if ended_well or self.d.output(name):
            assert rows == foretold, name

    def teardown(self) -> None:
        if not hasattr(self, "d"):
            return
        while self.d.in_flight:
            self.d.collect()
        self.d.run(max_steps=5000)
        assert self.d.kv.num_used == 0
        self.check_recomputed()
        assert sorted(record.request_id for record in self.d.ended) == sorted(self.accepted)
        for name in self.accepted:
            request = self.d.requests[name]
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert self.d.output(name) == self.d.expected(name)

    def check_recomputed(self) -> None:
        """Of all tokens given, those not counted as recomputed were computed for the first time."""
        if not self.d.caching:
            given = sum(record.num_tokens for record in self.d.records)
            again = sum(record.recomputed_tokens for record in self.d.records)
            first = sum(r.num_computed_once for r in self.d.requests.values())
            assert given - again == first


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
