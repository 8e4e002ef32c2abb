"""Comparisons as files, tables and pages."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headway.bench.best import best_point
from headway.bench.comparison import Comparison, Goal, read_comparison, to_csv, to_json
from headway.bench.comparison_report import (
    by_chance,
    change_rows,
    counter_table,
    make_page,
    moved,
    point_table,
)
from headway.bench.contrast import FIGURES, Change, contrasts
from headway.bench.trials import Sample, Trial
from headway.errors import InvalidConfig


def trial(variant: str, index: int, factor: float) -> Trial:
    wobble = 1 + (0.01, -0.01, 0.0)[index] * (1 if variant == "baseline" else -1)
    result = {
        figure.key: (100 / factor if figure.higher_is_better else 100 * factor) * wobble
        for figure in FIGURES
    }
    return Trial(
        variant=variant,
        round=index,
        seed=index,
        result={
            **result,
            "failed": 0,
            "completed": 10,
            "saturated": False,
            "request_goodput": 3 / factor,
            "classes": {},
        },
        details={
            "class_names": ["a", "a"],
            "ttfts": [0.1 * factor, 0.123456789],
            "latencies": [1.0, 2.0],
            "itls": [[0.1], [0.2, 0.3]],
            "input_lens": [5, 5],
            "output_lens": [2, 3],
            "generated_texts": ["x", "y"],
        },
        samples=[Sample(at_s=0.0, running=3.0 + index, waiting=1.0, kv_usage=0.5, preemptions=0.0)],
        counters={
            "num_preemptions_total": 10.0 * index,
            "prefix_cache_queries_total": 200.0,
            "prefix_cache_hits_total": 50.0,
            'request_success_total{finished_reason="stop"}': 1.0,
        },
        model="a model",
    )


def comparison(baseline: str | None = "baseline", goal: Goal | None = None) -> Comparison:
    factors = {"baseline": 1.0, "max_num_seqs=4": 2.0, "<b>=1": 1.0}
    return Comparison(
        command="headway compare --set '<b>=1'",
        date="2026-01-02T03:04:05Z",
        machine="a machine, 2 cores",
        version="1.2.3",
        options={"baseline": (), "max_num_seqs=4": ("--max-num-seqs=4",), "<b>=1": ("--b=1",)},
        workloads={name: {"classes": [], "seed": 0} for name in factors},
        baseline=baseline,
        goal=goal,
        trials=[
            trial(name, index, factor) for index in range(3) for name, factor in factors.items()
        ],
    )


def test_a_saved_comparison_is_read_as_it_was_but_for_digits(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(to_json(comparison()), encoding="utf-8")
    again = read_comparison(path)
    assert "0.123456789" not in path.read_text(encoding="utf-8")
    assert to_json(again) == to_json(comparison())
    assert again.trials[0].samples == comparison().trials[0].samples


@pytest.fixture
def few_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is drawn, to see its names in the page; all are in their own tests."""
    for name in ("latency_cdf", "lines", "timeline"):
        report = "headway.bench.comparison_report"
        monkeypatch.setattr(f"{report}.{name}", lambda *_, **__: "<svg></svg>")


def test_a_page_has_all_that_a_reader_must_know_and_escapes_it(few_plots: None) -> None:
    html = make_page(comparison()).html()
    for words in (
        "a machine, 2 cores",
        "2026-01-02T03:04:05Z",
        "Headway 1.2.3",
        "3 rounds",
        "a model",
    ):
        assert words in html
    assert "headway compare --set &#x27;&lt;b&gt;=1&#x27;" in html
    assert "<b>" not in html
    assert html.count("<svg") == 4 + 1 + 3  # latencies, throughput, a timeline for each variant


def test_a_sweeps_page_tells_the_best_point(few_plots: None) -> None:
    goal = Goal(figure="output_throughput")
    html = make_page(comparison(None, goal)).html()
    assert "Most output tokens: " in html
    assert html.count("<svg") == 4 + 1 + 3


@pytest.mark.parametrize(
    ("text", "said"), [("{", "holds no comparison"), ('{"command": 3}', "holds no comparison")]
)
def test_a_file_that_is_no_comparison_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfig, match=rf"^from: .*x\.json {said}"):
        read_comparison(path)
    with pytest.raises(InvalidConfig, match=r"from: .*nowhere"):
        read_comparison(tmp_path / "nowhere")


def test_csv_has_a_row_a_trial() -> None:
    rows = list(csv.DictReader(to_csv(comparison()).splitlines()))
    assert len(rows) == 9
    assert rows[1]["variant"] == "max_num_seqs=4"
    assert float(rows[1]["median_ttft_ms"]) == pytest.approx(198)
    assert (rows[4]["round"], rows[4]["num_preemptions_total"]) == ("1", "10.0")
    assert not [name for name in rows[0] if "{" in name or name == "classes"]


def tell(changes: Sequence[Change], trials: Sequence[Trial] | None = None) -> str:
    return moved(changes, trials or comparison().trials, "baseline")


def test_rows_say_what_moved_and_the_sentence_names_it() -> None:
    changes = contrasts(comparison().trials, "baseline")
    slower = [change for change in changes if change.variant == "max_num_seqs=4"]
    same = [change for change in changes if change.variant == "<b>=1"]
    row = next(row for row in change_rows(slower) if row[0] == "TTFT, median (ms)")
    assert row[1:4] == ["100", "200", "+100.0 %"]
    assert row[5] == "worse"
    assert tell(slower).startswith("Moved: requests (1/s) −50.0 % (worse); ")
    assert tell(same) == "Nothing moved by more than noise."
    assert tell([replace(change, verdict="unclear") for change in same]).startswith("Unclear")
    assert "Of 16 rows about 1 would" in (by_chance(changes) or "")
    assert by_chance(same) is None


def test_what_the_servers_did_is_the_median_over_the_rounds() -> None:
    header, rows = counter_table(comparison().trials)
    row = dict(zip(header, rows[0], strict=True))
    assert row == {
        "": "baseline",
        "saturated rounds": "0 of 3",
        "failed": "0",
        "preemptions": "10",
        "evictions": "–",
        "prefix hits (%)": "25",
        "most running": "4",
        "most waiting": "1",
        "most KV held (%)": "50",
    }


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (
            Goal(figure="output_throughput"),
            r"Most output tokens: (baseline|<b>=1), 100 tok/s. "
            r"Not told apart from it: (baseline|<b>=1)\.",
        ),
        (
            Goal(figure="request_goodput", max_ttft_ms=150),
            r"Most goodput with TTFT, p99 of 150 ms or less: baseline, 3 1/s. Not .*: <b>=1\.",
        ),
        (Goal(figure="request_goodput", max_ttft_ms=5), "No point has any goodput with .* 5 ms"),
    ],
)
def test_the_best_point_is_named_with_those_that_noise_does_not_tell_apart(
    goal: Goal, said: str
) -> None:
    assert re.match(said, best_point(comparison(None, goal).trials, goal))


def test_a_sweep_by_goodput_shows_it() -> None:
    header, rows = point_table(comparison(None, Goal(figure="request_goodput")))
    assert header[1] == "goodput (1/s)"
    assert [row[1] for row in rows] == ["3", "1.5", "3"]
    assert "goodput (1/s)" not in point_table(comparison())[0]


def changed(variant: str, rounds: Sequence[int], **figures: object) -> list[Trial]:
    """The trials, some of one variant with other figures."""
    return [
        replace(each, result={**each.result, **figures})
        if each.variant == variant and each.round in rounds
        else each
        for each in comparison().trials
    ]


def test_a_win_of_those_that_were_not_refused_says_so() -> None:
    trials = changed("<b>=1", [0, 2], failed=4, completed=6)
    same = [each for each in contrasts(trials, "baseline") if each.variant == "<b>=1"]
    said = "8 of 30 requests failed (baseline: 0 of 30): latencies are of the others."
    assert tell(same, trials) == f"Nothing moved by more than noise. {said}"
    slower = [each for each in contrasts(trials, "baseline") if each.variant == "max_num_seqs=4"]
    assert "failed" not in tell(slower, trials)
    best = best_point(trials, Goal(figure="output_throughput"))
    assert best.endswith(" Of <b>=1, 8 of 30 requests failed: latencies are of the others.")


def test_failures_that_are_the_same_on_both_sides_are_no_difference() -> None:
    trials = changed("baseline", [0], failed=1, completed=9)
    trials = [replace(each, result={**each.result, "failed": 1, "completed": 9}) for each in trials]
    same = [each for each in contrasts(trials, "baseline") if each.variant == "<b>=1"]
    assert "failed" not in tell(same, trials)


def test_a_point_that_was_saturated_is_marked_and_the_best_that_was_not_named() -> None:
    trials = changed("<b>=1", [0, 1, 2], saturated=True, output_throughput=900)
    best = best_point(trials, Goal(figure="output_throughput"))
    assert best == (
        "Most output tokens: <b>=1 (saturated in 3 of 3), 900 tok/s. "
        "Most of those that were not saturated: baseline, 100 tok/s."
    )
    all_of_them = [replace(each, result={**each.result, "saturated": True}) for each in trials]
    best = best_point(all_of_them, Goal(figure="output_throughput"))
    assert best.endswith("Every such point was saturated.")
    header, rows = counter_table(trials)
    column = header.index("saturated rounds")
    assert [row[column] for row in rows] == ["0 of 3", "0 of 3", "3 of 3"]


def test_a_point_with_a_round_of_no_ttft_is_within_no_bound() -> None:
    trials = changed("<b>=1", [1], p99_ttft_ms=None, output_throughput=900)
    best = best_point(trials, Goal(figure="output_throughput", max_ttft_ms=150))
    assert "<b>=1" not in best


def test_a_page_warns_and_shows_every_load_with_its_variants(few_plots: None) -> None:
    of_its_own = {"baseline": {"seed": 1}, "max_num_seqs=4": {"seed": 2}, "<b>=1": {"seed": 1}}
    trials = changed("max_num_seqs=4", [0], saturated=True)
    html = make_page(replace(comparison(), trials=trials, workloads=of_its_own)).html()
    assert "The load of baseline, &lt;b&gt;=1: {&quot;seed&quot;:1}" in html
    assert "The load of max_num_seqs=4: {&quot;seed&quot;:2}" in html
    assert "The load saturated the server: max_num_seqs=4 (in 1 of 3 rounds)." in html
