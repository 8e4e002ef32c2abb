"""Who goes next: the policies and their bounds on waiting (rules S12, S13; invariant I18)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from driver import Driver
from headway.core.policies import POLICIES, FairPolicy
from headway.core.policy import RankedPolicy
from headway.core.request import Request


def order_of(d: Driver, names: Iterable[str]) -> str:
    """The names in the order in which they were admitted."""
    d.run()
    return "".join(sorted(names, key=lambda name: d.requests[name].admitted_s))


def test_s13_there_are_six_policies_and_fcfs_is_by_arrival() -> None:
    assert sorted(POLICIES) == ["deadline", "fair", "fcfs", "lpm", "priority", "sjf"]
    d = Driver(width=1)
    for name, size in (("a", 9), ("b", 1), ("c", 4)):
        d.add(name, size)
    assert order_of(d, "cba") == "abc"


def test_s12_aging_lets_a_request_gain_a_level_in_so_many_seconds() -> None:
    d = Driver(width=1, policy="priority", policy_options={"aging_s": 10.0})
    d.add("busy", 4, max_tokens=9)
    d.step()
    d.add("low", 4, priority=2)
    d.now += 19
    d.add("early", 4, priority=0)
    d.now += 2
    d.add("late", 4, priority=0)
    assert order_of(d, ["late", "low", "early"]) == "earlylowlate"


@pytest.mark.parametrize("aging_s", [10.0, 0.0])
def test_s12_i18_with_aging_the_least_urgent_waits_a_bounded_time(aging_s: float) -> None:
    """It is behind no request of priority 0 that arrives 3 · aging seconds after it."""
    d = Driver(width=1, policy="priority", policy_options={"aging_s": aging_s})
    low = d.add("low", 4, priority=3, max_tokens=2)
    for i in range(100):
        d.add(f"u{i}", 4, priority=0, max_tokens=2)
        d.step()
    if aging_s == 0:
        assert low.first_scheduled_s is None, "strict: a stream of urgent ones holds it up"
    d.run()
    after = [
        r
        for name, r in d.requests.items()
        if name != "low" and r.arrival_s >= low.arrival_s + 3 * aging_s
    ]
    assert len(after) > 50
    if aging_s:
        assert low.admitted_s < min(r.admitted_s for r in after)


def test_s13_sjf_takes_the_fewest_uncomputed_tokens_first_and_ages() -> None:
    d = Driver(width=1, policy="sjf", policy_options={"aging_tokens_per_s": 1.0})
    d.add("first", list(range(12)), max_tokens=1)
    d.step()
    d.add("busy", 4, max_tokens=9)
    d.step()
    d.add("a", 9)
    d.add("b", [*range(12), 50])  # 12 of its 13 tokens are cached
    d.add("c", 5)
    d.now += 3
    d.add("d", 3)  # 3 tokens, 3 s later: behind the five of `c`
    assert order_of(d, "abcd") == "bcda"


def test_s13_i18_sjf_with_aging_bounds_the_wait_of_a_long_prompt() -> None:
    """n uncomputed tokens are behind none that arrives n / aging seconds later."""
    d = Driver(width=1, policy="sjf", policy_options={"aging_tokens_per_s": 2.0})
    long = d.add("long", 60, max_tokens=1)
    for i in range(60):
        d.add(f"s{i}", 2, max_tokens=1)
        d.step()
    d.run()
    after = [r for r in d.requests.values() if r.arrival_s > long.arrival_s + 60 / 2.0]
    assert len(after) > 20
    assert long.admitted_s < min(r.admitted_s for r in after)


def test_s13_lpm_takes_the_longest_cached_prefix_first() -> None:
    d = Driver(width=1, policy="lpm", policy_options={"aging_tokens_per_s": 0.0})
    shared = list(range(16))
    d.add("first", shared, max_tokens=1)
    d.run()
    d.add("busy", 4, max_tokens=9)
    d.step()
    d.add("a", 9)
    d.add("b", [*shared[:8], 70])
    d.add("c", [*shared, 70])
    assert order_of(d, "abc") == "cba"


def test_s13_i18_lpm_with_aging_bounds_the_wait_of_one_without_hits() -> None:
    """It is behind none that arrives (its longest hit) / aging seconds later."""
    d = Driver(width=1, policy="lpm", policy_options={"aging_tokens_per_s": 1.0})
    shared = list(range(20))
    d.add("first", shared, max_tokens=1)
    d.run()
    cold = d.add("cold", 9, max_tokens=1)
    for i in range(50):
        d.add(f"h{i}", [*shared, 30 + i], max_tokens=1)
        d.step()
    d.run()
    after = [r for r in d.requests.values() if r.arrival_s > cold.arrival_s + 20]
    assert len(after) > 20
    assert cold.admitted_s < min(r.admitted_s for r in after)


def test_s13_deadline_takes_the_earliest_deadline_first() -> None:
    d = Driver(width=1, policy="deadline", policy_options={"default_s": 500.0})
    d.add("busy", 4, max_tokens=9)
    d.step()
    for name, deadline_s in (("a", 300.0), ("b", 100.0), ("c", None), ("d", 200.0)):
        d.add(name, 4, deadline_s=deadline_s)
    assert order_of(d, "abcd") == "bdac"


def test_s13_i18_one_admission_in_four_goes_to_a_late_request() -> None:
    """With k late ones before it, a late request is among the next 4 · (k + 1) admissions."""
    d = Driver(width=1, policy="deadline")
    d.add("busy", 4, max_tokens=20)
    d.step()
    for i in range(3):
        d.add(f"late{i}", 4, deadline_s=1.0, max_tokens=1)
    d.now += 5
    for i in range(30):
        d.add(f"good{i}", 4, deadline_s=1000.0, max_tokens=1)
    d.run()
    order = sorted(d.requests, key=lambda name: d.requests[name].admitted_s)[1:]
    assert [order.index(f"late{i}") for i in range(3)] == [3, 7, 11]


def test_s13_fair_serves_the_tenant_that_was_served_least() -> None:
    d = Driver(width=1, policy="fair")
    for i in range(3):
        d.add(f"a{i}", 10, tenant="a", max_tokens=1)
    for i in range(3):
        d.add(f"b{i}", 5, tenant="b", max_tokens=1)
    d.run()
    order = sorted(d.requests, key=lambda name: d.requests[name].admitted_s)
    # 12 for each of a, 7 for each of b; ties go to the earlier arrival.
    assert order == ["a0", "b0", "b1", "a1", "b2", "a2"]


def test_s13_fair_a_tenants_weight_is_its_share() -> None:
    d = Driver(width=1, policy="fair", policy_options={"weights": {"a": 3.0}})
    for i in range(12):
        d.add(f"a{i}", 4, tenant="a", max_tokens=1)
        d.add(f"b{i}", 4, tenant="b", max_tokens=1)
    d.run()
    order = sorted(d.requests, key=lambda name: d.requests[name].admitted_s)
    assert [name[0] for name in order[:16]].count("a") == 12


def test_s13_fair_a_tenant_that_comes_back_has_saved_nothing() -> None:
    d = Driver(width=1, policy="fair")
    for i in range(20):
        d.add(f"a{i}", 4, tenant="a", max_tokens=1)
    for _ in range(10):
        d.step()
    for i in range(10):
        d.add(f"b{i}", 4, tenant="b", max_tokens=1)
    d.run()
    order = sorted(d.requests, key=lambda name: d.requests[name].admitted_s)
    # Ten of `a` were served before `b` came; from then on they take turns.
    assert [name[0] for name in order[10:20]].count("b") == 5


def service_of(d: Driver) -> dict[str, float]:
    return d.scheduler._policy.service  # type: ignore[attr-defined,no-any-return]


def test_s13_fair_hits_are_free() -> None:
    d = Driver(policy="fair")
    shared = list(range(8))
    for name in "ab":
        d.add(name, [*shared, ord(name)], max_tokens=10)
        d.run()
    # Of the second prompt one token was computed: the other eight were hits.
    assert service_of(d) == {"": 9 + 1 + 2 * 20}


@pytest.mark.parametrize("first", [True, False])
def test_s13_fair_recomputation_is_free_and_what_is_taken_back_is_refunded(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(FairPolicy):
        def victim(self, running: Sequence[Request]) -> Request:
            return running[0 if first else -1]

    monkeypatch.setitem(POLICIES, "odd", Odd)  # type: ignore[arg-type]
    d = Driver(num_blocks=6, caching=False, reserve=False, policy="odd")
    for name in "ab":
        d.add(name, 8, max_tokens=12)
    d.run()
    assert sum(record.recomputed_tokens for record in d.records) > 0
    assert service_of(d) == {"": 16 + 2 * 24}


def test_s13_a_policy_of_ones_own_is_a_rank() -> None:
    class LongestFirst(RankedPolicy):
        def rank(self, request: Request, now: float, cached_tokens: int) -> tuple[float, ...]:
            return (-request.num_prompt_tokens,)

    policy = LongestFirst()
    d = Driver()
    for name, size in (("a", 3), ("b", 9), ("c", 9), ("d", 5)):
        request = d.make(name, size)
        request.sequence = len(d.requests)
        policy.add(request, 0.0, lambda _: 0)
    assert [r.request_id for r in policy.order(0.0, lambda _: 0)] == ["b", "c", "d", "a"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_p1_a_preempted_request_is_before_one_that_came_later_under_every_policy(
    policy: str,
) -> None:
    d = Driver(num_blocks=6, budget=16, caching=False, reserve=False, policy=policy)
    d.add("a", 8, max_tokens=12)
    d.add("b", 8, max_tokens=12)
    while d.requests["b"].num_preemptions == 0:
        d.step()
    d.add("c", 1, max_tokens=2)
    order = [r.request_id for r in d.scheduler._policy.order(d.now, lambda _: 0)]
    assert order == ["b", "c"]
    d.run()
    assert d.output("b") == d.expected("b")
