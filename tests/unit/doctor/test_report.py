"""What is shown: for people, as JSON, and live."""

from __future__ import annotations

import json

import pytest

from headway.doctor.diagnosis import diagnose
from headway.doctor.live import live_lines, sparkline
from headway.doctor.report import as_json, as_lines, verdict
from headway.doctor.series import Failure, Series
from unit.doctor.made import NUM, made

STORM = {"num_preemptions_by_cause{cause=memory}": 8.0, "num_preemptions": 8.0}


def report(*series: Series) -> str:
    return "\n".join(as_lines(series, diagnose(series)))


def test_a_healthy_server_is_called_so_and_what_was_looked_at_is_told() -> None:
    text = report(made())
    assert text.endswith("\nhealthy")
    assert "http://a:8000: 40.0 s, 41 samples" in text
    assert "KV 50 % · hit rate 60 %" in text
    assert "ok        prefix_hit_rate: 60 % of 32,000 prompt tokens" in text


def test_the_worst_comes_first_with_its_cause_and_what_to_change() -> None:
    text = report(made({"num_requests_waiting": 0.0}, STORM))
    assert text.endswith("\ncritical: preemptions")
    assert text.index("critical  preemptions: 320 preemptions") < text.index("info      waiting")
    assert "likely cause: capacity" in text
    assert "- not a larger --max-num-batched-tokens" in text
    assert max(map(len, text.splitlines())) <= 100


def test_engines_have_their_own_parts_and_one_that_told_nothing_says_so() -> None:
    end = made().samples[-1].time_s
    lost = Series(
        source="http://b:8000",
        engine="",
        flavour="headway",
        samples=(),
        failures=(Failure(end, "no answer"),),
    )
    text = report(made(), lost)
    assert text.index("http://a:8000: ") < text.index("http://b:8000: told nothing")
    assert text.index("it is lost: no answer") < text.index("all engines")
    assert "unknown   imbalance: needs two engines" in text


def test_json_has_verdict_figures_evidence_and_thresholds() -> None:
    series = [made(counters=STORM, times={"inter_token_latency_seconds": ()})]
    found = json.loads(json.dumps(as_json(series, diagnose(series)), allow_nan=False))
    assert found["verdict"] == "critical"
    (engine,) = found["engines"]
    assert (engine["window_s"], engine["num_samples"]) == (40.0, NUM)
    assert engine["figures"]["preemptions_per_s"] == 8.0
    assert engine["figures"]["itl_p50_s"] is None
    (finding,) = found["findings"]
    assert (finding["name"], finding["severity"]) == ("preemptions", "critical")
    assert finding["figures"]["preemptions_per_request"] == pytest.approx(320 / 165)
    assert finding["thresholds"] == {"warning": 0.05, "critical": 0.5}
    assert finding["engine"] == "http://a:8000"
    assert {"queue_time", "rejections"} <= {each["name"] for each in found["passed"]}
    assert [each["name"] for each in found["not_judged"]] == ["itl_stalls"]


def test_without_traffic_it_is_not_simply_healthy() -> None:
    nothing = made(
        {"num_requests_running": 0.0, "num_requests_waiting": 0.0},
        dict.fromkeys(
            (
                *("request_success{finished_reason=stop}", "prompt_tokens", "generation_tokens"),
                *("prefix_cache_queries", "prefix_cache_hits"),
            ),
            0.0,
        ),
    )
    assert verdict(diagnose([nothing])) == "healthy, as far as that can be told without traffic"


@pytest.mark.parametrize(("columns", "rows"), [(100, 40), (40, 8), (20, 3)])
def test_a_frame_fits_its_terminal_and_ends_with_the_verdict(columns: int, rows: int) -> None:
    lines = live_lines([made(counters=STORM)], columns=columns, rows=rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert lines[-1] == "critical: preemptions"[:columns]


def test_a_frame_shows_levels_rates_and_what_is_wrong() -> None:
    lines = live_lines([made(counters=STORM)], columns=100, rows=40)
    text = "\n".join(lines)
    running = next(line for line in lines if line.lstrip().startswith("running"))
    assert running.split()[:3] == ["running", "5", "(max"]
    assert running.rstrip().endswith(sparkline((5, 7, 6, 8, 5), 8))
    assert "output tok/s" in text
    assert "critical  preemptions: " in text


def test_a_sparkline_has_a_bar_for_each_value_and_none_for_nothing() -> None:
    assert sparkline((0, 1, 4, 8), 8) == " ▂▅█"
    assert sparkline((0, 0), 0) == "  "
