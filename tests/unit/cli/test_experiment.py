"""`headway experiment`: what is listed, run and refused."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headway.bench.experiments.catalogue import EXPERIMENTS
from headway.bench.experiments.experiment import Finding
from headway.cli import experiment as module
from headway.cli import main
from headway.errors import HeadwayError


@pytest.fixture
def conducted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was to be run."""
    calls: list[dict[str, Any]] = []

    def conduct(experiment: Any, directory: Path, **options: Any) -> list[Finding]:
        calls.append({"name": experiment.name, "directory": directory, **options})
        return [Finding(f"{experiment.name} holds.", "shown", "1 against 2.")]

    monkeypatch.setattr(module, "conduct", conduct)
    return calls


def test_the_list_has_each_experiment_and_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment", "--list"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    minutes = [int(line.split()[1]) for line in lines]
    assert all(1 <= each <= 5 for each in minutes)
    assert last.split()[:2] == ["all", str(sum(minutes))]


def test_an_experiment_is_run_and_its_findings_told(
    conducted: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new" / "one"
    main(["experiment", "batching", "--rounds", "5", "--output-dir", str(directory)])
    (call,) = conducted
    assert (call["name"], call["directory"]) == ("batching", directory)
    assert (call["rounds"], call["in_short"]) == (5, False)
    assert isinstance(call["now"], datetime)
    assert directory.is_dir()
    captured = capsys.readouterr()
    assert captured.out == "shown: batching holds.\n    1 against 2.\n"
    assert f"{directory}/batching.html" in captured.err


def test_all_are_run_in_order(conducted: list[dict[str, Any]], tmp_path: Path) -> None:
    main(["experiment", "all", "--output-dir", str(tmp_path)])
    assert [call["name"] for call in conducted] == list(EXPERIMENTS)
    assert {call["rounds"] for call in conducted} == {3}


def test_of_all_the_others_go_on_where_one_fails(
    conducted: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conduct = module.conduct

    def failing(experiment: Any, directory: Path, **options: Any) -> list[Finding]:
        if experiment.name == "watermark":
            raise HeadwayError("the server ended")
        return conduct(experiment, directory, **options)

    monkeypatch.setattr(module, "conduct", failing)
    with pytest.raises(SystemExit, match=r"error: 1 of 10 failed: watermark") as stopped:
        main(["experiment", "all", "--output-dir", str(tmp_path)])
    assert stopped.value.code != 0
    assert [call["name"] for call in conducted] == [
        name for name in EXPERIMENTS if name != "watermark"
    ]
    assert "watermark failed: the server ended" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="error: the server ended"):
        main(["experiment", "watermark", "--output-dir", str(tmp_path)])


def test_a_file_is_found_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SystemExit, match=f"{tmp_path}/x.json holds no experiment's trials"):
        main(["experiment", "--from", "~/x.json", "--output-dir", str(tmp_path)])


def test_quick_is_one_round(conducted: list[dict[str, Any]], tmp_path: Path) -> None:
    main(["experiment", "batching", "--quick", "--output-dir", str(tmp_path)])
    (call,) = conducted
    assert (call["rounds"], call["in_short"]) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which experiment?"),
        (["nonsense"], "no experiment 'nonsense'; there are batching,"),
        (["batching", "--list"], "--list: measures nothing, so name"),
        (["--list", "--from", "x.json"], "--list: measures nothing, so from"),
        (["--from", "x.json", "--rounds", "2"], "--from: measures nothing, so rounds"),
        (["--from", "x.json", "--quick"], "--from: measures nothing, so quick"),
        (["--from", "x.json"], "x.json: No such file"),
        (["--from", "x.json", "--add"], "--from: measures nothing, so add"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str],
    said: str,
    conducted: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", *arguments])
    assert said in str(stopped.value)
    assert not conducted
    assert not list(tmp_path.iterdir())


def test_there_must_be_rounds_to_add_to(conducted: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: --add: .*batching\.json: No such file"):
        main(["experiment", "all", "--add", "--output-dir", str(tmp_path)])
    assert not conducted


def test_without_matplotlib_nothing_is_measured(
    conducted: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = r"error: --output-dir: a page needs matplotlib; .*headway\[report\]"
    with pytest.raises(SystemExit, match=said):
        main(["experiment", "batching"])
    assert not conducted
