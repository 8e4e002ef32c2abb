"""Each rule fires in its state, and no other does."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.doctor
from headway.cli.parser import build_parser
from headway.core.step import WAITING_REASONS
from headway.doctor.diagnosis import LOAD_RULES, diagnose, worst
from headway.doctor.finding import Severity
from headway.doctor.rules.faults import HUNG_S
from headway.doctor.series import Failure, Series
from unit.doctor.made import NUM, made
from unit.doctor.states import GROWING, QUIET, STATES, fired, of


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_named_and_nothing_else(state: str) -> None:
    series, expected = STATES[state]
    assert fired(diagnose([series()])) == expected


@pytest.mark.parametrize("state", STATES)
def test_what_is_wrong_has_evidence_a_cause_and_what_to_change(state: str) -> None:
    for finding in diagnose([STATES[state][0]()]):
        assert finding.what
        if finding.severity >= Severity.WARNING:
            assert re.search(r"\d", finding.what), finding.what
            assert finding.cause
            assert finding.advice
            assert finding.figures
            assert finding.thresholds


@pytest.mark.parametrize("state", [state for state in STATES if state.startswith("stalls by")])
def test_stalls_have_the_cause_that_made_them(state: str) -> None:
    cause = state.removeprefix("stalls by ").removesuffix(" of vLLM")
    assert of(diagnose([STATES[state][0]()]), "itl_stalls").cause.startswith(cause)


@pytest.mark.parametrize("reason", ["", *WAITING_REASONS])
def test_what_holds_up_the_queue_decides_what_to_change(reason: str) -> None:
    series = made({"num_requests_waiting": GROWING}, reasons={reason: GROWING} if reason else {})
    growing = of(diagnose([series]), "waiting_growing")
    assert f"{reason!r}" in growing.cause or not reason
    assert ("raise --max-num-batched" in growing.advice[0]) == (reason == "budget")
    assert ("a larger --max-num-batched" in growing.advice[0]) == (not reason)


def test_a_healthy_server_was_looked_at_by_every_rule() -> None:
    findings = diagnose([made()])
    assert worst(findings) is Severity.OK
    names = {finding.name for finding in findings}
    assert names == {rule.__name__ for rule in LOAD_RULES} | {
        "rejections",
        "steps_failed",
        "engine_lost",
    }


@settings(max_examples=25, deadline=None)
@given(
    state=st.sampled_from([name for name in STATES if name != "idle"]),
    scale=st.floats(0.05, 20),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
)
def test_neither_the_pace_nor_what_counters_began_at_changes_a_finding(
    state: str, scale: float, offset: float
) -> None:
    series, expected = STATES[state]
    assert fired(diagnose([series(every_s=scale, offset=offset)])) == expected


def test_a_restart_within_the_window_is_told_and_costs_no_figures() -> None:
    findings = diagnose([made(offset=1e6, restart_at=20)])
    assert fired(findings) == {"engine_lost": "warning"}
    rate = next(each for each in findings if each.name == "prefix_hit_rate")
    assert rate.figures["hit_rate"] == pytest.approx(0.6)


def test_an_engine_is_lost_while_the_last_read_failed() -> None:
    end = made().samples[-1].time_s
    lost = made(failures=[Failure(end + 1, "no answer")])
    back = made(failures=[Failure(end - 5, "no answer")])
    never = Series(
        source="http://b", engine="", flavour="headway", samples=(), failures=lost.failures
    )
    assert fired(diagnose([lost])) == {"engine_lost": "critical"}
    assert fired(diagnose([back])) == {"engine_lost": "warning"}
    assert fired(diagnose([never])) == {"engine_lost": "critical"}


def test_an_engine_whose_requests_get_no_tokens_hangs() -> None:
    nothing = {"prompt_tokens": 0.0, "generation_tokens": 0.0}
    running = {"num_requests_running": 2.0}
    hung = made(running, nothing, dict.fromkeys(QUIET, ()), every_s=HUNG_S / (NUM - 1))
    soon = made(running, nothing, dict.fromkeys(QUIET, ()), every_s=0.9 * HUNG_S / (NUM - 1))
    assert fired(diagnose([hung]))["engine_lost"] == "critical"
    assert "engine_lost" not in fired(diagnose([soon]))


@pytest.mark.parametrize(("hangs_for", "severity"), [(HUNG_S, "critical"), (HUNG_S - 1, None)])
def test_a_hang_is_seen_though_it_began_within_the_window(
    hangs_for: float, severity: str | None
) -> None:
    begins = NUM - 1 - int(hangs_for)
    tokens = (100.0,) * (begins + 1) + (0.0,) * int(hangs_for)
    running = (0.0,) * begins + (2.0,) * (NUM - begins)
    hung = made(
        {"num_requests_running": running},
        {"prompt_tokens": tokens, "generation_tokens": tokens},
    )
    assert fired(diagnose([hung])).get("engine_lost") == severity


def test_a_recording_is_not_judged_for_what_it_does_not_hold() -> None:
    series = replace(made(), recorded=True)
    bare = [
        replace(each, counters={k: v for k, v in each.counters.items() if k != "request_errors"})
        for each in series.samples
    ]
    findings = diagnose([replace(series, samples=tuple(bare))])
    assert of(findings, "rejections").severity is Severity.UNKNOWN
    assert of(findings, "steps_failed").what == "0 steps failed"
    assert "engine_lost" not in {each.name for each in findings}


def test_preemptions_are_shared_by_those_that_still_wait() -> None:
    series = made(
        {"num_requests_running": 2.0, "num_requests_waiting": 38.0},
        {"request_success{finished_reason=stop}": 0, "num_preemptions_by_cause{cause=memory}": 0.5},
    )
    found = of(diagnose([series]), "preemptions")
    assert found.figures["preemptions_per_request"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("hits", "says"),
    [(88, "neither low nor good"), (400, "neither low nor good"), (408, "good"), (720, "good")],
)
@pytest.mark.parametrize("ideal", [True, False])
def test_a_hit_rate_that_is_not_low_says_whether_it_is_good(
    hits: int, says: str, ideal: bool
) -> None:
    known = {"ideal_prefix_cache_queries": 800.0, "ideal_prefix_cache_hits": 1.0 * hits}
    series = made(counters={"prefix_cache_hits": hits, **(known if ideal else {})})
    found = of(diagnose([series]), "prefix_hit_rate")
    assert found.severity is Severity.OK
    begin, _, best = found.what.partition("; a cache of any size")
    assert begin.endswith(f"were found in the prefix cache, which is {says}")
    assert bool(best) == ideal


@pytest.mark.parametrize("ideal", [True, False])
def test_routing_is_advised_where_it_may_be_at_fault(ideal: bool) -> None:
    known = {"ideal_prefix_cache_queries": 800.0, "ideal_prefix_cache_hits": 40.0}
    series = made(counters={"prefix_cache_hits": 40, **(known if ideal else {})})
    found = of(diagnose([series]), "prefix_hit_rate")
    assert ("route by prefix" in " ".join(found.advice)) != ideal
    assert ("different servers" in found.cause) != ideal


@pytest.mark.parametrize("mean", [0.8, 3.0])
def test_requests_that_are_dealt_out_by_chance_are_no_imbalance(mean: float) -> None:
    draw = random.Random(3)
    warned = sum(
        of(diagnose([by_chance(draw, mean), by_chance(draw, mean)]), "imbalance").severity
        is Severity.WARNING
        for _ in range(40)
    )
    assert warned <= 1


def by_chance(draw: random.Random, mean: float) -> Series:
    """Requests come by a Poisson process, and take 10 s on average."""
    ends: list[float] = []
    running, ended = [], []
    for second in range(-60, NUM):
        come = draw.expovariate(mean / 10)
        while come < 1:
            ends.append(second + come + draw.expovariate(0.1))
            come += draw.expovariate(mean / 10)
        gone = [end for end in ends if end <= second + 1]
        ends = [end for end in ends if end > second + 1]
        if second >= 0:
            running.append(float(len(ends)))
            ended.append(float(len(gone)))
    return made(
        {"num_requests_running": running, "num_requests_waiting": 0.0},
        {"request_success{finished_reason=stop}": ended},
    )


def test_too_little_traffic_is_not_judged() -> None:
    few = made(
        counters={
            "prefix_cache_queries": (0.0,) * 40 + (100.0,),
            "prefix_cache_hits": 0,
            "request_success{finished_reason=stop}": (0.0,) * 40 + (1.0,),
        },
        times=dict.fromkeys(QUIET, ()),
    )
    unknown = {each.name for each in diagnose([few]) if each.severity is Severity.UNKNOWN}
    assert unknown == {"prefix_hit_rate", "queue_time", "itl_stalls"}


def test_what_vllm_does_not_count_is_not_judged() -> None:
    findings = diagnose([made(flavour="vllm")])
    unknown = {each.name for each in findings if each.severity is Severity.UNKNOWN}
    assert unknown == {"evictions", "rejections"}


def test_a_metric_that_is_not_there_is_not_judged() -> None:
    series = made()
    bare = [replace(each, gauges={}, counters={}, histograms={}) for each in series.samples]
    findings = diagnose([replace(series, samples=tuple(bare))])
    assert worst(findings) <= Severity.INFO
    busy = [replace(each, counters={}, histograms={}) for each in series.samples]
    findings = diagnose([replace(series, samples=tuple(busy))])
    assert worst(findings) <= Severity.INFO


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"num_requests_running": 40.0, "num_requests_waiting": 9.0}, "warning"),
        ({"num_requests_running": 12.0}, ""),
        ({"num_requests_running": 5.0}, ""),
    ],
)
def test_engines_that_share_the_work_badly_are_told(
    second: dict[str, float], expected: str
) -> None:
    found = diagnose([made(), made(second, source="http://b:8000")])
    assert fired([each for each in found if not each.source]) == (
        {"imbalance": expected} if expected else {}
    )


@pytest.mark.parametrize(
    ("ended", "expected"), [((0.3, 0.0), True), ((0.0, 0.3), True), ((9.0, 5.0), False)]
)
def test_requests_that_no_sample_saw_count_as_well(
    ended: tuple[float, float], expected: bool
) -> None:
    engines = [
        made(
            {"num_requests_running": 0.0, "num_requests_waiting": 0.0},
            {"request_success{finished_reason=stop}": rise},
            source=f"http://{name}:8000",
        )
        for name, rise in zip("ab", ended, strict=True)
    ]
    told = of(diagnose(engines), "imbalance")
    assert (told.severity is Severity.WARNING) == expected
    assert f"on http://{'ab'[ended[1] > ended[0]]}:8000" in told.what.partition(",")[0]


def test_hit_rates_that_differ_are_a_matter_of_routing() -> None:
    other = made(counters={"prefix_cache_hits": 160}, source="http://b:8000")
    found = {each.name: each for each in diagnose([made(), other])}
    assert found["imbalance"].severity is Severity.INFO
    assert found["imbalance"].advice == ("route by prefix",)


def test_the_guide_has_each_finding_in_the_order_of_the_rules() -> None:
    text = (Path(__file__).parents[3] / "docs" / "guide" / "doctor.md").read_text("utf-8")
    found = diagnose([made(), made(source="http://b:8000")])
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(
        dict.fromkeys(each.name for each in found)
    )


def test_each_option_that_is_advised_exists() -> None:
    serve = next(iter(build_parser()._subparsers._group_actions)).choices["serve"]  # type: ignore
    doctor = next(iter(build_parser()._subparsers._group_actions)).choices["doctor"]  # type: ignore
    known = {flag for parser in (serve, doctor) for flag in parser._option_string_actions}
    theirs = {"--gpu-memory-utilization"}
    sources = Path(headway.doctor.__file__).parent.rglob("*.py")
    advised = {
        flag for path in sources for flag in re.findall(r"--[a-z][a-z-]+", path.read_text("utf-8"))
    }
    assert len(advised) > 10
    assert advised - known <= theirs
