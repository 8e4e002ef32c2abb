"""Figures of a timeline made by hand."""

from __future__ import annotations

import pytest

from headway.bench.figures import METRICS, Wanted, details, figures
from headway.bench.load import Outcome, Run
from headway.workload import Text, WorkItem

ALL = Wanted(metrics=tuple(METRICS), percentiles=(50, 99.9))


def outcome(
    *times: float,
    sent: float = 0.0,
    due: float | None = None,
    arrival: float | None = None,
    name: str = "a",
    tokens: int | None = None,
    error: str | None = None,
    prompt: int | None = None,
) -> Outcome:
    due = sent if due is None else due
    return Outcome(
        WorkItem(name, 0.0, (Text("t", 3, range(9)),), 4),
        arrival_s=due if arrival is None else arrival,
        asked_len=3,
        due_s=due,
        sent_s=sent,
        chunk_times_s=list(times),
        texts=["x"] * len(times),
        prompt_tokens=prompt,
        completion_tokens=tokens,
        error=error,
    )


def of(*outcomes: Outcome, wanted: Wanted = ALL, duration: float = 10.0, **options: str) -> dict:
    return figures([Run(0.0, duration, list(outcomes))], wanted, **options)


def test_each_time_of_two_requests() -> None:
    first = outcome(1.2, 1.3, 1.5, 1.9, sent=1.0, arrival=0.5)
    second = outcome(3.0, 3.4, sent=2.0)
    result = of(first, second)
    assert (result["mean_ttft_ms"], result["std_ttft_ms"]) == pytest.approx((600, 400))
    # 0.7 s for three tokens after the first, and 0.4 s for one.
    assert result["mean_tpot_ms"] == pytest.approx((700 / 3 + 400) / 2)
    # Of gaps, not of requests.
    assert result["mean_itl_ms"] == pytest.approx((100 + 200 + 400 + 400) / 4)
    assert result["median_itl_ms"] == pytest.approx(300)
    assert result["mean_e2el_ms"] == pytest.approx((900 + 1400) / 2)
    assert result["mean_client_queue_time_ms"] == pytest.approx(250)
    assert result["mean_e2el_including_client_queue_ms"] == pytest.approx((1400 + 1400) / 2)
    assert result["p50_ttft_ms"] == result["median_ttft_ms"] == pytest.approx(600)
    assert result["p99.9_ttft_ms"] == pytest.approx(200 + 0.999 * 800)


def test_throughput_is_over_the_whole_time_and_from_what_the_server_counted() -> None:
    result = of(outcome(1.0, 2.0, tokens=8, prompt=5), outcome(1.5), duration=4.0)
    assert (result["completed"], result["duration"]) == (2, 4.0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (5 + 3, 8 + 1)
    assert result["request_throughput"] == 0.5
    assert result["output_throughput"] == 9 / 4
    assert result["total_token_throughput"] == 17 / 4
    assert result["token_counts"] == "usage, else chunks"


def test_several_tokens_in_a_chunk_change_tpot_and_not_itl() -> None:
    result = of(outcome(1.0, 1.4, 1.8, sent=0.5, tokens=9))
    assert result["mean_itl_ms"] == pytest.approx(400)
    assert result["mean_tpot_ms"] == pytest.approx(100)
    assert result["tokens_per_chunk"] == 3.0


def test_failures_are_counted_and_are_in_nothing_else() -> None:
    good = outcome(1.0, 2.0, sent=0.5)
    bad = [outcome(9.0, 9.9, error="gone"), outcome(error="gone"), outcome(error="HTTP 500")]
    alone, among = of(good), of(good, *bad)
    assert among["failed"] == 3
    assert among["error_counts"] == {"gone": 2, "HTTP 500": 1}
    for key in alone.keys() - {"failed", "error_counts"}:
        assert among[key] == alone[key], key


def test_where_nothing_was_measured_there_is_no_figure() -> None:
    result = of(outcome(1.0, error="x"))
    assert result["completed"] == result["output_throughput"] == 0
    assert result["max_output_tokens_per_s"] == result["max_concurrent_requests"] == 0
    names = [key for key in result if key.endswith(tuple(f"_{name}_ms" for name in METRICS))]
    assert len(names) == 5 * len(METRICS)
    assert {result[key] for key in names} == {None}


def test_one_token_has_no_tpot() -> None:
    result = of(outcome(1.0), outcome(1.0, 2.0))
    assert result["mean_tpot_ms"] == pytest.approx(1000)
    assert of(outcome(1.0))["mean_tpot_ms"] is None


def test_goodput_counts_requests_that_keep_to_every_limit() -> None:
    outcomes = (
        outcome(0.1, 0.2),  # TTFT 100, TPOT 100, E2EL 200
        outcome(0.3, 0.35),
        outcome(0.1, 0.6),
        outcome(0.1),  # no TPOT: it cannot be too long
    )

    def good(**limits: float) -> float:
        wanted = Wanted(metrics=(), percentiles=(), goodput=limits)
        return of(*outcomes, wanted=wanted, duration=1.0)["request_goodput"]

    assert good(ttft=150) == 3
    assert good(ttft=150, tpot=150) == 2
    assert good(ttft=300, tpot=100, e2el=350) == 3
    assert good(tpot=10) == 1
    assert of(*outcomes)["request_goodput"] is None


def test_the_busiest_second_and_the_most_at_once() -> None:
    result = of(
        outcome(5.1, 5.2, 6.5, sent=5.0, tokens=6),  # two tokens a chunk
        outcome(5.3, sent=5.2),
        outcome(6.6, sent=6.5),  # sent as the first one ends
    )
    assert result["max_output_tokens_per_s"] == 5.0
    assert result["max_concurrent_requests"] == 2


def test_a_class_alone() -> None:
    result = of(outcome(1.0, name="a"), outcome(3.0, name="b"), class_name="b")
    assert (result["completed"], result["mean_ttft_ms"]) == (1, 3000)


def test_runs_are_pooled_request_by_request() -> None:
    runs = [
        Run(0.0, 2.0, [outcome(1.0), outcome(1.0, 1.5)]),
        Run(50.0, 6.0, [outcome(53.0, sent=50.0)]),
    ]
    result = figures(runs, ALL)
    assert result["duration"] == 8.0
    assert result["mean_ttft_ms"] == pytest.approx(5000 / 3)
    assert result["request_throughput"] == 3 / 8
    assert result["max_concurrent_requests"] == 2


def test_lateness_is_what_the_client_adds_and_no_wait_for_a_place() -> None:
    result = of(
        outcome(9.0, sent=5.01, due=5.0, arrival=1.0),
        outcome(9.0, sent=2.0, due=2.0),
        outcome(9.0, sent=2.03, due=2.0, error="counts too"),
    )
    assert result["mean_lateness_ms"] == pytest.approx(40 / 3)
    assert result["max_lateness_ms"] == pytest.approx(30)
    assert result["p99_lateness_ms"] == pytest.approx(10 + 0.98 * 20)


def test_what_was_never_sent_was_neither_late_nor_in_time() -> None:
    late = outcome(9.0, sent=5.03, due=5.0)
    lost = outcome(error="not sent: a turn before it failed", sent=7.0)
    lost.unsent, lost.ended_s = True, 7.0
    result = of(late, lost)
    assert (result["completed"], result["failed"]) == (1, 1)
    for key in ("mean_lateness_ms", "p99_lateness_ms", "max_lateness_ms"):
        assert result[key] == pytest.approx(30)
    found = details([Run(0.0, 9.0, [late, lost])])
    assert found["failed_after"] == [None, None]
    assert found["queue_times"] == [pytest.approx(0.03), None]
    assert found["errors"][1].startswith("not sent")


def test_details_by_request_have_no_times_where_it_failed() -> None:
    run = Run(0.0, 1.0, [outcome(1.0, 1.5, sent=0.5, prompt=7), outcome(0.2, error="gone")])
    run.outcomes[1].ended_s = 0.3
    assert details([run]) == {
        "input_lens": [7, 3],
        "output_lens": [2, 0],
        "ttfts": [0.5, None],
        "itls": [[0.5], []],
        "latencies": [1.0, None],
        "start_times": [0.5, 0.0],
        "queue_times": [0.0, 0.0],
        "generated_texts": ["xx", "x"],
        "errors": ["", "gone"],
        "class_names": ["a", "a"],
        "failed_after": [None, 0.3],
    }
