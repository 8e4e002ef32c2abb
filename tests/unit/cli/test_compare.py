"""`headway compare` and `headway bench sweep`, with measuring faked."""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headway.bench.comparison import Comparison, Goal, read_comparison, to_json
from headway.bench.serving import Load
from headway.bench.trials import Sample, Trial, Variant
from headway.cli import main
from headway.cli.bench.sweep import grid_of, loads_of
from headway.cli.compare import variants_of
from headway.cli.parser import build_parser
from headway.cli.variants import settings
from headway.errors import HeadwayError, InvalidConfig
from headway.workload import Poisson
from unit.bench.test_comparison import comparison

DETAILS = ("class_names", "output_lens", "ttfts", "itls", "latencies")


def parsed(*argv: str) -> argparse.Namespace:
    return build_parser().parse_args(list(argv))


def names(variants: Sequence[Variant]) -> dict[str, tuple[str, ...]]:
    return {variant.name: variant.options for variant in variants}


class Measuring:
    """Stands for `run_trials`."""

    def __init__(self, factor: Callable[[Variant], float]) -> None:
        self._factor = factor
        self.calls: list[tuple[Sequence[Variant], Load, dict[str, Any]]] = []
        self.ends_in_round: int | None = None
        self.end: BaseException = KeyboardInterrupt()

    def __call__(self, variants: Sequence[Variant], load: Load, **how: Any) -> list[Trial]:
        self.calls.append((variants, load, how))
        trials: list[Trial] = []
        for index in range(how["rounds"]):
            if index == self.ends_in_round:
                raise self.end
            of_round = [self._trial(variant, index) for variant in variants]
            how["on_round"](of_round)
            trials += of_round
        return trials

    def _trial(self, variant: Variant, index: int) -> Trial:
        value = 100 * self._factor(variant) * (1 + index / 1000)
        return Trial(
            variant=variant.name,
            round=index,
            seed=index,
            result={"median_ttft_ms": value, "output_throughput": 1e4 / value, "failed": 0},
            details={name: [] for name in DETAILS},
            samples=[Sample(at_s=0, running=1, waiting=0, kv_usage=0, preemptions=0)],
        )


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    fake = Measuring(lambda variant: 1 + len(variant.options))
    monkeypatch.setattr("headway.cli.variants.run_trials", fake)
    monkeypatch.setattr("headway.cli.compare.calm_collector", lambda: None)
    monkeypatch.setattr("headway.cli.bench.sweep.calm_collector", lambda: None)
    return fake


def failing(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code not in (0, None)
    return str(ended.value.code) + capsys.readouterr().err


def test_each_set_is_one_variant_beside_the_baseline() -> None:
    args = parsed(
        *("compare", "--model", "m", "--set", "max-num-seqs=4", "--set", "recipe=chat"),
        *("--set", "block_size=32,enable-prefix-caching=off", "--", "--num-threads", "2"),
    )
    common = ("--model=m", "--num-threads", "2")
    assert names(variants_of(args)) == {
        "baseline": common,
        "max_num_seqs=4": (*common, "--max-num-seqs=4"),
        "recipe=chat": (*common, "--recipe=chat"),
        "block_size=32,enable_prefix_caching=off": (
            *common,
            "--block-size=32",
            "--no-enable-prefix-caching",
        ),
    }


def test_a_value_may_have_commas_and_equals_signs() -> None:
    assert settings("set", "fair_weights=alice=2,bob=1,max-num-seqs=3") == {
        "fair_weights": "alice=2,bob=1",
        "max_num_seqs": "3",
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "compare what? --set max_num_seqs=64"),
        (
            ["--set", "max_num_seq=4"],
            "--set: max_num_seq is no option of headway serve; max_num_se",
        ),
        (["--set", "xyzzy"], "--set: must be like max_num_seqs=64, not 'xyzzy'"),
        (["--set", "block_size=1,block-size=2"], "has block_size twice"),
        (
            ["--set", "block_size=16", "--set", "block-size=16"],
            "--set: block_size=16 is given twice",
        ),
        (["--set", "async_scheduling=perhaps"], "async_scheduling must be on or off"),
        (["--set", "block_size=x"], "argument --block-size: invalid int value: 'x'"),
        (["--set", "port=1"], "--port: is not for servers that are started to be measured"),
        (["--set", "block_size=32", "--", "--api-key", "k"], "--api-key: is not for servers"),
        (["--set", "block_size=32", "--", "--no-such"], "unrecognized arguments: --no-such"),
        (["--set", "block_size=32", "--", "--drain-timeout=-1"], "--drain-timeout: must be"),
        (["--set", "block_size=32", "--workload", "nowhere"], "--workload: "),
        (["--set", "block_size=32", "--output-csv", "/no/where"], "--output-csv: cannot write"),
        (["--from", "x", "--set", "block_size=32"], "--from: measures nothing, so --set has no"),
        (["--from", "x", "--seed", "3"], "--from: measures nothing, so --seed has no"),
        (["--from", "x", "--num-prompts", "3"], "so --num-prompts has no meaning"),
        (["--from", "x", "--rate-scale", "2"], "so --rate-scale has no meaning"),
        (["--from", "x", "--", "--block-size=32"], "so an option of headway serve has no"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    argv: list[str], said: str, measuring: Measuring, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in failing(capsys, "compare", *argv)
    assert not measuring.calls


def test_a_report_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    measuring: Measuring, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(option: str) -> None:
        raise InvalidConfig(option, "needs matplotlib")

    monkeypatch.setattr("headway.cli.variants.check_plots", missing)
    said = failing(capsys, "compare", "--set", "block_size=32", "--output-html", "x.html")
    assert "--output-html: needs matplotlib" in said
    assert not measuring.calls


def test_compare_tells_what_moved_and_writes_what_it_can_tell_again(
    measuring: Measuring, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved, rows = tmp_path / "c.json", tmp_path / "c.csv"
    main(
        [
            *("compare", "--set", "block_size=32", "--seed", "5", "--num-prompts", "7"),
            *("--max-concurrency", "3", "--output-json", str(saved), "--output-csv", str(rows)),
        ]
    )
    ((variants, load, how),) = measuring.calls
    assert [variant.name for variant in variants] == ["baseline", "block_size=32"]
    assert (how["rounds"], how["seed"]) == (5, 5)
    assert (load.workload.classes[0].num_prompts, load.max_concurrency) == (7, 3)
    told = capsys.readouterr().out
    assert "block_size=32, beside baseline:" in told
    assert "TTFT, median (ms)" in told
    assert "(worse)" in told
    kept = json.loads(saved.read_text(encoding="utf-8"))
    assert kept["baseline"] == "baseline"
    assert {name: each["seed"] for name, each in kept["workloads"].items()} == {
        "baseline": 5,
        "block_size=32": 5,
    }
    assert len(rows.read_text(encoding="utf-8").splitlines()) == 11
    main(["compare", "--from", str(saved)])
    assert capsys.readouterr().out == told
    assert len(measuring.calls) == 1
    assert "is of headway compare" in failing(capsys, "bench", "sweep", "--from", str(saved))


@pytest.mark.parametrize(
    ("command", "whole", "told"),
    [
        (("compare",), comparison(), "Throughput against latency"),
        (
            ("bench", "sweep"),
            comparison(None, Goal(figure="output_throughput")),
            "Most output tokens: ",
        ),
    ],
    ids=["compare", "sweep"],
)
def test_all_that_is_asked_for_is_written_with_its_plots(
    command: tuple[str, ...],
    whole: Comparison,
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    source = tmp_path / "source.json"
    source.write_text(to_json(whole), encoding="utf-8")
    written = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "html")}
    options = (word for kind, path in written.items() for word in (f"--output-{kind}", str(path)))
    main([*command, "--from", str(source), *options])
    said = capsys.readouterr().err
    assert all(f"Written to {path}" in said for path in written.values())
    assert to_json(read_comparison(written["json"])) == to_json(whole)
    rows = list(csv.DictReader(written["csv"].read_text(encoding="utf-8").splitlines()))
    assert [row["variant"] for row in rows] == [trial.variant for trial in whole.trials]
    html = written["html"].read_text(encoding="utf-8")
    assert told in html
    figures = re.findall(r"<figure>\n(<svg.*?</svg>)\n<figcaption>", html, re.DOTALL)
    assert len(figures) == 4 + 1 + 3  # latencies, throughput, a timeline for each variant
    words = [" ".join(ElementTree.fromstring(svg).itertext()) for svg in figures]
    for axis in ("TTFT (ms)", "TPOT (ms)", "ITL (ms)", "E2EL (ms)", "output throughput (tok/s)"):
        assert [axis in each for each in words].count(True) == 1
    assert ["running" in each for each in words].count(True) == 3
    assert "<b>" not in html
    assert not re.search(r'(src|href)="(?!#)|url\((?!#)', html)


@pytest.mark.parametrize(
    ("end", "code"),
    [(KeyboardInterrupt(), "130"), (HeadwayError("baseline, round 3: it ended"), "it ended")],
)
def test_what_is_cut_short_reports_its_whole_rounds_and_fails(
    measuring: Measuring,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    end: BaseException,
    code: str,
) -> None:
    measuring.end, measuring.ends_in_round = end, 2
    saved = tmp_path / "saved.json"
    measure = ("compare", "--set", "block_size=32", "--output-json", str(saved))
    said = failing(capsys, *measure)
    assert code in said
    assert "Cut short: this is of 2 of 5 rounds." in said
    assert [each["round"] for each in json.loads(saved.read_text())["trials"]] == [0, 0, 1, 1]
    measuring.ends_in_round = 0
    saved.unlink()
    assert "Cut short" not in failing(capsys, *measure)
    assert not saved.exists()


def test_a_grid_is_every_combination_of_every_rate() -> None:
    args = parsed(
        *("bench", "sweep", "--grid", "max-num-seqs=16,64", "--grid", "recipe=chat,mixed"),
        *("--request-rate", "1,2.5"),
    )
    assert grid_of(args) == [
        ("max_num_seqs=16,recipe=chat", ("--max-num-seqs=16", "--recipe=chat")),
        ("max_num_seqs=16,recipe=mixed", ("--max-num-seqs=16", "--recipe=mixed")),
        ("max_num_seqs=64,recipe=chat", ("--max-num-seqs=64", "--recipe=chat")),
        ("max_num_seqs=64,recipe=mixed", ("--max-num-seqs=64", "--recipe=mixed")),
    ]
    loads = loads_of(args)
    assert [load.workload.classes[0].arrivals for load in loads.values()] == [
        Poisson(1.0),
        Poisson(2.5),
    ]
    assert list(loads) == ["request_rate=1", "request_rate=2.5"]


def test_a_workload_is_swept_over_by_scales_of_its_rates() -> None:
    loads = loads_of(parsed("bench", "sweep", "--workload", "chat", "--rate-scale", "0.5,2"))
    assert {name: load.workload.classes[0].arrivals for name, load in loads.items()} == {
        "rate_scale=0.5": Poisson(0.5),
        "rate_scale=2": Poisson(2.0),
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "sweep over what?"),
        (["--grid", "max_num_seqs=1"], "sweep over what?"),
        (["--grid", "max_num_seqs=1,1"], "--grid: max_num_seqs has a value twice"),
        (["--grid", "max_num_seqs=1,2", "--grid", "max-num-seqs=3"], "max_num_seqs is given twice"),
        (["--grid", "max_num_seqs=1,x"], "argument --max-num-seqs: invalid int value: 'x'"),
        (["--request-rate", "1,1"], "argument --request-rate: invalid list of different rates"),
        (
            ["--grid", "fair_weights=a=1,b=2"],
            "--grid: fair_weights has values with commas; headway",
        ),
        (["--from", "x", "--goodput", "ttft:5"], "--from: measures nothing, so --goodput has no"),
        (["--from", "x", "--request-rate", "1,2"], "so --request-rate has no meaning"),
        (["--from", "x", "--rate-scale", "1,2"], "so --rate-scale has no meaning"),
        (["--rate-scale", "1,1"], "argument --rate-scale: invalid list of different rates"),
        (["--rate-scale", "1,2"], "--rate-scale: the workload has no rate"),
        (["--rate-scale", "2,3", "--request-rate", "1"], "--rate-scale: is for a --workload"),
        (["--from", "x", "--max-concurrency", "2"], "so --max-concurrency has no meaning"),
        (["--request-rate", "1,2", "--goodput", "nothing:1"], "--goodput: must be like ttft:500"),
        (["--request-rate", "1,2", "--workload", "chat"], "--request-rate: is the workload's"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_measured(
    argv: list[str], said: str, measuring: Measuring, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in failing(capsys, "bench", "sweep", *argv)
    assert not measuring.calls


def test_a_sweep_tells_its_best_point(
    measuring: Measuring, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "s.json"
    main(
        [
            *("bench", "sweep", "--request-rate", "1,inf", "--output-json", str(saved)),
            *("--max-ttft-ms", "500"),
        ]
    )
    ((variants, _, how),) = measuring.calls
    assert [variant.name for variant in variants] == ["request_rate=1", "request_rate=inf"]
    assert how["rounds"] == 3
    told = capsys.readouterr().out
    assert "No point has any output tokens with TTFT, p99 of 500 ms or less." in told
    workloads = json.loads(saved.read_text(encoding="utf-8"))["workloads"]
    assert {name: each["classes"][0]["arrivals"]["type"] for name, each in workloads.items()} == {
        "request_rate=1": "poisson",
        "request_rate=inf": "at_once",
    }
    main(["bench", "sweep", "--from", str(saved)])
    assert capsys.readouterr().out == told
    main(["bench", "sweep", "--from", str(saved), "--max-ttft-ms", "250"])
    assert "TTFT, p99 of 250 ms or less" in capsys.readouterr().out
    assert "is of headway bench sweep" in failing(capsys, "compare", "--from", str(saved))


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(HeadwayError, match="compare what"):
        variants_of(parsed("compare"))
