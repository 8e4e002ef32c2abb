"""Plots as SVG."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from headway.bench.plots import check_plots, latency_cdf, lines, throughput_latency, timeline
from headway.bench.trials import Sample, Trial
from headway.errors import InvalidConfig


def trial(variant: str, index: int = 0, *, count: int = 50, scale: float = 1.0) -> Trial:
    ttfts: list[float | None] = [0.1 * scale + i / 1000 for i in range(count)]
    return Trial(
        variant=variant,
        round=index,
        seed=0,
        result={"output_throughput": 100 / scale, "median_ttft_ms": 125 * scale},
        details={
            "class_names": ["a", "b"] * (count // 2),
            "ttfts": [*ttfts[:-1], None],  # the last one failed
            "latencies": [1.0] * (count - 1) + [None],
            "itls": [[0.01, 0.02]] * (count - 1) + [[]],
            "output_lens": [3] * count,
        },
        samples=[
            Sample(at_s=i / 4, running=i, waiting=2, kv_usage=0.5, preemptions=i // 10)
            for i in range(40)
        ],
    )


TRIALS = [trial("baseline"), trial("x=1", scale=2.0), trial("baseline", 1), trial("x=1", 1)]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if "text" in each.tag]


def test_a_drawing_stands_in_a_page_without_names_or_sizes_of_its_own() -> None:
    first, second = latency_cdf(TRIALS), timeline(TRIALS[0])
    for svg in (first, second):
        root = ElementTree.fromstring(svg)
        assert not {"width", "height"} & root.attrib.keys()
        assert "viewBox" in root.attrib
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "<metadata" not in svg
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
        assert set(re.findall(r'\bid="([^"]+)"', svg)) <= used
    assert first == latency_cdf(TRIALS)


@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2el"])
def test_a_distribution_names_its_variants_and_units_and_stays_small(metric: str) -> None:
    svg = latency_cdf([trial("baseline", count=5000), trial("x=1", count=5000)], metric=metric)
    assert {"baseline", "x=1", f"{metric.upper()} (ms)"} <= set(texts(svg))
    assert len(svg) < 60_000


def test_a_variant_has_the_same_colour_in_all_plots() -> None:
    series = {"baseline": [(1.0, 2.0)], "x=1": [(1.0, 3.0)]}
    for svg in (
        latency_cdf(TRIALS),
        throughput_latency(TRIALS),
        lines(series, x_label="x", y_label="y"),
    ):
        colours = list(dict.fromkeys(re.findall(r"#0072b2|#e69f00|#009e73", svg)))
        assert colours == ["#0072b2", "#e69f00"]


def test_one_value_is_a_line_that_can_be_seen() -> None:
    (path,) = re.findall(
        r'<path d="([^"]*)" clip-path[^>]*stroke: #0072b2', latency_cdf([trial("a", count=2)])
    )
    assert path.count("L") == 1


def test_a_class_may_be_looked_at_alone_and_one_without_requests_is_empty() -> None:
    assert "baseline" not in texts(latency_cdf(TRIALS, class_name="nobody"))


def test_points_of_one_x_are_their_median_and_range() -> None:
    one = lines({"a": [(1, 2), (2, 9), (2, 3), (2, 4)]}, x_label="x", y_label="y")
    other = lines({"a": [(1, 2), (2, 3), (2, 4), (2, 9)]}, x_label="x", y_label="y")
    assert one == other != lines({"a": [(1, 2), (2, 4)]}, x_label="x", y_label="y")
    assert lines({"a": [(64, 2), (256, 4)]}, x_label="x", y_label="y", log_x=True, log_y=True)


def test_counts_stand_at_whole_numbers_also_where_there_were_none() -> None:
    samples = [
        Sample(at_s=at_s, running=1, waiting=0, kv_usage=1, preemptions=0) for at_s in (0, 9)
    ]
    idle = replace(trial("a"), samples=samples)
    assert not [text for text in texts(timeline(idle)) if text.startswith("0.")]


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plots("output_html")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = r"output_html: a page needs matplotlib.*headway\[report\]"
    with pytest.raises(InvalidConfig, match=said):
        check_plots("output_html")


def test_commands_that_draw_nothing_do_not_load_it() -> None:
    program = (
        "import sys, headway.cli.compare, headway.cli.bench.sweep; "
        "print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout.split() == ["False", "False"], ran.stderr
