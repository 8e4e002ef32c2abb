"""Queues whose arrivals and services are known: does a run of them say that it was too much?"""

from __future__ import annotations

import heapq
import math
from random import Random

import pytest

from headway.bench.load import Outcome, Run
from headway.bench.saturation import saturation
from headway.workload import (
    Arrivals,
    ClosedLoop,
    Poisson,
    Ramp,
    TrafficClass,
    WorkItem,
    Workload,
    arrival_times,
)


def workload(arrivals: Arrivals) -> Workload:
    kind = TrafficClass(name="a", num_prompts=1, input_len=1, output_len=1, arrivals=arrivals)
    return Workload(classes=(kind,))


def served(
    arrivals: Arrivals,
    count: int,
    seed: int,
    *,
    servers: int,
    spread: float,
    limit: float = math.inf,
) -> Run:
    """First come, first served, one request a second in all; a first token when it is begun. Who
    would wait for longer than `limit` is refused."""
    random = Random(seed)
    free = [0.0] * servers
    outcomes = []
    for arrival_s in arrival_times(arrivals, count, random):
        outcome = Outcome(WorkItem("a", arrival_s, (), 1), arrival_s)
        outcomes.append(outcome)
        begin_s = max(arrival_s, free[0])
        if begin_s - arrival_s > limit:
            outcome.error, outcome.ended_s = "HTTP 429: the queue is full", arrival_s + 0.01
            continue
        heapq.heappop(free)
        takes_s = servers * random.uniform(1 - spread, 1 + spread)
        heapq.heappush(free, begin_s + takes_s)
        # A prompt of some length, then the answer, whose tokens come while others are served.
        first_s = begin_s + random.uniform(0.5, 1.0)
        outcome.chunk_times_s = [first_s, begin_s + max(takes_s, 1.0)]
    return Run(0.0, max(each.chunk_times_s[-1] for each in outcomes if not each.error), outcomes)


def share(rate: float, count: int, *, seeds: int = 30, **server: float) -> float:
    arrivals = Poisson(rate)
    runs = (served(arrivals, count, seed, **server) for seed in range(seeds))
    found = [saturation([run], workload(arrivals))["saturated"] for run in runs]
    assert None not in found
    return sum(found) / seeds


@pytest.mark.parametrize(("servers", "spread"), [(1, 0.0), (1, 0.9), (16, 0.5)])
@pytest.mark.parametrize("count", [60, 150])
def test_a_steady_run_is_not_called_saturated_and_one_at_twice_its_rate_is(
    servers: int, spread: float, count: int
) -> None:
    assert share(0.7, count, servers=servers, spread=spread) <= 0.04
    assert share(2.0, count, servers=servers, spread=spread) >= 0.9


@pytest.mark.parametrize(("servers", "spread"), [(1, 0.0), (16, 0.5)])
def test_a_server_that_refuses_what_is_too_much_is_saturated_though_no_queue_grows(
    servers: int, spread: float
) -> None:
    assert share(0.7, 150, servers=servers, spread=spread, limit=16.0) == 0
    assert share(2.0, 150, servers=servers, spread=spread, limit=4.0) == 1


def test_rates_are_of_all_that_came_and_of_those_who_were_served() -> None:
    run = served(Poisson(3.0), 150, 0, servers=1, spread=0.0, limit=4.0)
    signs = saturation([run], workload(Poisson(3.0)))["saturation"]
    assert signs["arrival_rate"] == pytest.approx(3.0, rel=0.1)
    assert signs["served_rate"] == pytest.approx(1.0, rel=0.1)
    assert signs["refused_share"] == pytest.approx(2 / 3, abs=0.1)
    assert signs["queue_grows"] is False


def test_other_errors_are_no_refusals_and_what_was_never_sent_did_not_come() -> None:
    run = served(Poisson(0.5), 90, 0, servers=1, spread=0.0)
    for number, outcome in enumerate(run.outcomes):
        if number % 3 == 0:
            outcome.error, outcome.ended_s = "HTTP 500: broken", outcome.arrival_s
        elif number % 3 == 1:
            outcome.error, outcome.unsent = "not sent: a turn before it failed", True
    found = saturation([run], workload(Poisson(0.5)))
    assert found["saturated"] is False
    assert found["saturation"]["refused_share"] == 0
    assert found["saturation"]["arrival_rate"] == pytest.approx(0.5 * 2 / 3, rel=0.1)


def test_that_nearly_all_were_refused_is_said_though_few_were_served() -> None:
    run = served(Poisson(1.0), 60, 0, servers=1, spread=0.0)
    for outcome in run.outcomes[2:]:
        outcome.error, outcome.ended_s = "HTTP 503: queue_timeout", outcome.arrival_s + 1
    found = saturation([run], workload(Poisson(1.0)))
    assert found["saturated"] is True
    assert found["saturation"]["last_ttft_ms"] is None


def filling(seed: int) -> Run:
    """All are served at once, for a third of the run each, and more slowly beside others."""
    run = Run(0.0, 0.0, [])
    ends: list[float] = []
    for arrival_s in arrival_times(Poisson(1.0), 150, Random(seed)):
        under_way = sum(end > arrival_s for end in ends)
        outcome = Outcome(WorkItem("a", arrival_s, (), 1), arrival_s)
        outcome.chunk_times_s = [arrival_s + 0.1 * (1 + under_way), arrival_s + 50.0]
        ends.append(arrival_s + 50.0)
        run.outcomes.append(outcome)
    return run


def test_a_server_that_fills_as_the_run_begins_is_not_saturated() -> None:
    work = workload(Poisson(1.0))
    # Of the few that come out, all grew in the last third too, by chance.
    assert sum(saturation([filling(seed)], work)["saturated"] for seed in range(20)) <= 4


def test_a_ramp_is_saturated_where_it_goes_beyond_what_can_be_served() -> None:
    for rate_to, expected in ((0.8, False), (4.0, True)):
        arrivals = Ramp(rate_from=0.2, rate_to=rate_to)
        runs = [served(arrivals, 150, seed, servers=4, spread=0.2) for seed in range(20)]
        found = [saturation([run], workload(arrivals))["saturated"] for run in runs]
        assert found == [expected] * 20


def test_the_signs_are_those_of_the_run_where_they_are_strongest() -> None:
    calm, full = (served(Poisson(rate), 90, 0, servers=1, spread=0.0) for rate in (0.5, 3.0))
    both = saturation([calm, full], workload(Poisson(1.0)))
    assert both == saturation([full], workload(Poisson(1.0)))
    signs = both["saturation"]
    assert both["saturated"] is True
    assert signs["last_concurrency"] > 4 * signs["first_concurrency"]
    assert signs["last_ttft_ms"] > 4 * signs["first_ttft_ms"]
    assert signs["arrival_rate"] == pytest.approx(3.0, rel=0.1)
    assert signs["served_rate"] == pytest.approx(1.0, rel=0.1)


def test_there_are_loads_of_which_it_cannot_be_told() -> None:
    run = served(Poisson(2.0), 90, 0, servers=1, spread=0.0)
    nothing = {"saturated": None, "saturation": None}
    assert saturation([run], workload(ClosedLoop(4))) == nothing
    few = served(Poisson(2.0), 19, 0, servers=1, spread=0.0)
    assert saturation([few], workload(Poisson(2.0))) == nothing
    for outcome in run.outcomes[10:]:
        outcome.error = "refused"
    assert saturation([run], workload(Poisson(2.0))) == nothing
