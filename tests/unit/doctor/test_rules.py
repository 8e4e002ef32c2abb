"""Each rule fires in its state, and no other does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.doctor
from headway.cli.parser import build_parser
from headway.doctor.diagnosis import LOAD_RULES, diagnose, worst
from headway.doctor.finding import Finding, Severity
from headway.doctor.rules.faults import HUNG_S
from headway.doctor.series import Failure, Series
from unit.doctor.made import NUM, made

GROWING = tuple(float(index) for index in range(NUM))
FULL = {"num_requests_running": 8.0, "num_requests_waiting": 6.0}
SHORT = {"kv_cache_usage_perc": 0.97, "num_requests_waiting": 4.0}
IDLE_GAUGES = {"num_requests_running": 0.0, "num_requests_waiting": 0.0}


def idle(**changes: object) -> Series:
    """Nobody asks it for anything."""
    nothing = dict.fromkeys(
        (
            *("request_success{finished_reason=stop}", "prompt_tokens", "generation_tokens"),
            *("prefix_cache_queries", "prefix_cache_hits"),
        ),
        0.0,
    )
    return made(IDLE_GAUGES, nothing, dict.fromkeys(QUIET, ()), **changes)  # type: ignore[arg-type]


QUIET = (
    *("request_queue_time_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("iteration_tokens_total", "request_prompt_tokens"),
)

STATES: dict[str, tuple[Callable[..., Series], dict[str, str]]] = {
    "healthy": (made, {}),
    "healthy, of vLLM": (lambda **o: made(flavour="vllm", **o), {}),
    "no prefixes in common": (
        lambda **o: made(counters={"prefix_cache_hits": 40}, **o),
        {"prefix_hit_rate": "info"},
    ),
    "a cache too small for its prefixes": (
        lambda **o: made(
            counters={
                "prefix_cache_hits": 160,
                "ideal_prefix_cache_queries": 800,
                "ideal_prefix_cache_hits": 600,
                "kv_cache_evictions": 40,
            },
            **o,
        ),
        {"prefix_hit_rate": "warning", "evictions": "warning"},
    ),
    "caching off": (
        lambda **o: made(
            counters={"prefix_cache_queries": 0, "prefix_cache_hits": 0},
            info={"enable_prefix_caching": "False"},
            **o,
        ),
        {"prefix_hit_rate": "info"},
    ),
    "a full cache of what never comes again": (
        lambda **o: made(counters={"kv_cache_evictions": 40, "prefix_cache_hits": 560}, **o),
        {"evictions": "info"},
    ),
    "some preemptions": (
        lambda **o: made(counters={"num_preemptions_by_cause{cause=memory}": 0.5}, **o),
        {"preemptions": "warning"},
    ),
    "a storm of them": (
        lambda **o: made(counters={"num_preemptions_by_cause{cause=memory}": 8}, **o),
        {"preemptions": "critical"},
    ),
    "preemptions of vLLM": (
        lambda **o: made(counters={"num_preemptions": 0.5}, flavour="vllm", **o),
        {"preemptions": "warning"},
    ),
    "preemptions that were asked for": (
        lambda **o: made(
            counters={"num_preemptions": 4, "num_preemptions_by_cause{cause=priority}": 4}, **o
        ),
        {},
    ),
    "at the limit": (
        lambda **o: made(FULL, reasons={"width": 6.0}, **o),
        {"running_at_limit": "warning"},
    ),
    "at the limit, of vLLM": (
        lambda **o: made(FULL, flavour="vllm", **o),
        {"running_at_limit": "warning"},
    ),
    "at the limit, and nobody waits": (
        lambda **o: made({"num_requests_running": 8.0}, flavour="vllm", **o),
        {},
    ),
    "more than it can serve": (
        lambda **o: made({"num_requests_waiting": GROWING}, reasons={"budget": GROWING}, **o),
        {"waiting_growing": "warning"},
    ),
    "a flood that came once": (
        lambda **o: made({"num_requests_waiting": (0.0,) * 10 + (30.0,) * 31}, **o),
        {},
    ),
    "running ones that wait again": (
        lambda **o: made(
            {"num_requests_waiting": GROWING, "num_requests_running": GROWING[::-1]}, **o
        ),
        {},
    ),
    "stalls by preemptions": (
        lambda **o: made(
            counters={"num_preemptions": 0.1, "num_preemptions_by_cause{cause=memory}": 0.1},
            times={
                "inter_token_latency_seconds": (0.03,) * 190 + (3.0,) * 10,
                "iteration_tokens_total": (8,) * 9 + (2048,),
                "step_duration_seconds": (0.03,) * 9 + (0.5,),
            },
            **o,
        ),
        {"itl_stalls": "warning"},
    ),
    "a queue that shrinks": (
        lambda **o: made({"num_requests_waiting": GROWING[::-1]}, **o),
        {},
    ),
    "an empty queue": (
        lambda **o: made({"num_requests_waiting": 0.0}, **o),
        {"waiting_empty": "info"},
    ),
    "short of blocks": (
        lambda **o: made(SHORT, reasons={"blocks": 4.0}, **o),
        {"kv_pressure": "warning"},
    ),
    "short of blocks, of vLLM": (
        lambda **o: made(SHORT, flavour="vllm", **o),
        {"kv_pressure": "warning"},
    ),
    "a full cache that is enough": (
        lambda **o: made({"kv_cache_usage_perc": 0.97}, **o),
        {},
    ),
    "long in the queue": (
        lambda **o: made(
            {"num_requests_waiting": (3.0, 4.0) * 20 + (3.0,)},
            times={"request_queue_time_seconds": (0.08, 0.1, 0.09, 0.1)},
            reasons={"budget": 3.0},
            **o,
        ),
        {"queue_time": "warning"},
    ),
    "stalls by long prompts": (
        lambda **o: made(
            times={
                "inter_token_latency_seconds": (0.03,) * 190 + (0.6,) * 10,
                "iteration_tokens_total": (8,) * 9 + (2048,),
            },
            **o,
        ),
        {"itl_stalls": "warning"},
    ),
    "stalls that nobody sees": (
        lambda **o: made(times={"inter_token_latency_seconds": (0.003,) * 190 + (0.06,) * 10}, **o),
        {},
    ),
    "a few refused": (
        lambda **o: made(counters={"request_errors{code=queue_full}": 0.25}, **o),
        {"rejections": "warning"},
    ),
    "a flood that is refused": (
        lambda **o: made(counters={"request_errors{code=queue_full}": 12}, **o),
        {"rejections": "critical"},
    ),
    "failed steps": (
        lambda **o: made(counters={"steps_failed": (0.0,) * 20 + (1.0,) + (0.0,) * 20}, **o),
        {"steps_failed": "warning"},
    ),
    "steps that all fail": (
        lambda **o: made(counters={"steps_failed": 9}, **o),
        {"steps_failed": "critical"},
    ),
    "failed requests of vLLM": (
        lambda **o: made(
            counters={"request_success{finished_reason=error}": 1}, flavour="vllm", **o
        ),
        {"steps_failed": "warning"},
    ),
    "an engine that was replaced": (
        lambda **o: made(counters={"engine_restarts": (0.0,) * 20 + (1.0,) + (0.0,) * 20}, **o),
        {"engine_lost": "warning"},
    ),
    "idle": (idle, {"no_traffic": "info"}),
}


def fired(findings: list[Finding]) -> dict[str, str]:
    return {
        each.name: each.severity.name.lower() for each in findings if each.severity >= Severity.INFO
    }


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


@pytest.mark.parametrize("by", ["long prompts", "preemptions"])
def test_stalls_have_the_cause_that_made_them(by: str) -> None:
    findings = diagnose([STATES[f"stalls by {by}"][0]()])
    (stalls,) = (each for each in findings if each.name == "itl_stalls")
    assert stalls.cause.startswith(by)


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
        ({"num_requests_running": 1.0, "num_requests_waiting": 0.0}, "warning"),
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
