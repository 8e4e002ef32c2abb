"""What is kept of an experiment, its page, and the index."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headway import __version__
from headway.bench.experiments import conduct as module
from headway.bench.experiments.catalogue import EXPERIMENTS
from headway.bench.experiments.conduct import conduct, prepare, write_page
from headway.bench.experiments.saved import (
    GAPS,
    KEPT,
    Saved,
    read_earlier,
    read_saved,
    write_saved,
)
from headway.bench.keeping import slim
from headway.bench.trials import Trial, Variant
from headway.errors import InvalidConfig
from made_trials import made_trials

BATCHING = replace(EXPERIMENTS["batching"], plot=lambda trials, page: page.heading("A plot"))
FIGURES = {"static": {"output_throughput": 0.5, "median_ttft_ms": 5.0}, "continuous": {}}
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Variant, ...], int, int, int]]:
    """What was asked to be measured: variants, prompts of the load, rounds, the first seed."""
    asked = []

    def run_trials(variants, load, *, rounds, say, seed):  # type: ignore[no-untyped-def]
        asked.append((variants, load.workload.classes[0].num_prompts, rounds, seed))
        return made_trials(FIGURES, rounds=rounds)

    monkeypatch.setattr(module, "run_trials", run_trials)
    return asked


def run(
    directory: Path, *, rounds: int = 3, in_short: bool = False, earlier: Saved | None = None
) -> list[str]:
    found = conduct(
        BATCHING,
        directory,
        rounds=rounds,
        in_short=in_short,
        now=NOW,
        machine="a <machine>",
        say=lambda line: None,
        earlier=earlier,
    )
    return [finding.verdict for finding in found]


def test_a_run_leaves_trials_page_and_index(made: list[object], tmp_path: Path) -> None:
    assert run(tmp_path) == ["shown", "shown"]
    assert made == [(BATCHING.variants, 400, 3, 0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "batching.html",
        "batching.json",
        "index.md",
    ]
    page = (tmp_path / "batching.html").read_text(encoding="utf-8")
    measured = "2026-03-04T05:06:07Z"
    for text in (BATCHING.title, measured, "a-model on a &lt;machine&gt;", "3 rounds"):
        assert text in page
    assert "A plot" in page
    assert "StaticBatchingPolicy" in page
    assert "num_prompts" in page
    rows = (tmp_path / "index.md").read_text(encoding="utf-8").splitlines()[-2:]
    assert [row.split(" | ")[2] for row in rows] == ["shown", "shown"]
    for row in rows:
        assert row.startswith("| [batching](batching.html) | ")
        assert row.endswith("| 2026-03-04 | a <machine> |")


def test_more_rounds_go_on_from_those_before(
    made: list[tuple[object, ...]], tmp_path: Path
) -> None:
    assert run(tmp_path, rounds=2) == ["unclear", "unclear"]
    first = read_saved(tmp_path / "batching.json")
    assert run(tmp_path, rounds=3, earlier=first) == ["shown", "shown"]
    assert [asked[2:] for asked in made] == [(2, 0), (3, 2)]
    whole = read_saved(tmp_path / "batching.json")
    assert [trial.round for trial in whole.trials] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (whole.rounds, whole.trials[:4]) == (5, first.trials)


def test_rounds_that_were_measured_otherwise_are_not_added_to(tmp_path: Path) -> None:
    kept = replace(saved(made_trials(FIGURES)), version=__version__)
    path = tmp_path / "batching.json"
    for other, said in (
        ({"machine": "another"}, "is of: another; this would be of: a machine"),
        ({"version": "0"}, f"is of: Headway 0; this would be of: Headway {__version__}"),
        ({"quick": True}, "is of: --quick; this would be of: whole"),
    ):
        write_saved(replace(kept, **other), path)
        with pytest.raises(InvalidConfig, match=f"^add: .*{re.escape(said)}"):
            read_earlier(tmp_path, "batching", machine="a machine", quick=False)
    write_saved(kept, path)
    assert read_earlier(tmp_path, "batching", machine="a machine", quick=False) == kept


def test_a_quick_run_says_so(made: list[object], tmp_path: Path) -> None:
    assert run(tmp_path, rounds=1, in_short=True) == ["unclear", "unclear"]
    assert [asked[1:] for asked in made] == [(80, 1, 0)]
    assert "no figure here means anything" in (tmp_path / "batching.html").read_text("utf-8")
    assert "2026-03-04, quick" in (tmp_path / "index.md").read_text("utf-8")


def test_the_page_is_made_again_from_what_was_saved(made: list[object], tmp_path: Path) -> None:
    run(tmp_path)
    first = (tmp_path / "batching.html").read_bytes()
    again = tmp_path / "again"
    prepare(again)
    findings = write_page(BATCHING, read_saved(tmp_path / "batching.json"), again)
    assert [finding.verdict for finding in findings] == ["shown", "shown"]
    assert (again / "batching.html").read_bytes() == first


def test_trials_that_lack_a_variant_make_no_page(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"from: what Headway 1 measured lacks continuous$"):
        write_page(BATCHING, saved(made_trials({"static": {}})), tmp_path)


def test_the_index_has_all_experiments_in_the_directory(made: list[object], tmp_path: Path) -> None:
    other = EXPERIMENTS["policies"]
    trials = made_trials(
        {each.name: {} for each in other.variants},
        classes={"heavy": {}, "light": {}},
        noise=0.01,
    )
    write_saved(saved(trials, "policies"), tmp_path / "policies.json")
    run(tmp_path)
    rows = (tmp_path / "index.md").read_text(encoding="utf-8").splitlines()[6:]
    assert [row.split("]")[0][3:] for row in rows] == ["batching"] * 2 + ["policies"] * 3


def test_what_cannot_be_read_has_a_row_that_says_so(made: list[object], tmp_path: Path) -> None:
    (tmp_path / "policies.json").write_text("{}")
    old = made_trials({each.name: {} for each in EXPERIMENTS["queue-limit"].variants})
    for trial in old:
        del trial.details["errors"]
    write_saved(saved(old, "queue-limit"), tmp_path / "queue-limit.json")
    run(tmp_path)
    rows = (tmp_path / "index.md").read_text(encoding="utf-8").splitlines()[6:]
    assert [row.split(" | ")[2] for row in rows] == ["shown", "shown"] + ["unreadable"] * 2
    assert rows[2].startswith("| policies | – | unreadable | policies.json holds no experiment's")
    assert "queue-limit.json, by Headway 1, lacks errors" in rows[3]


def saved(trials: list[Trial], name: str = "batching") -> Saved:
    return Saved(
        experiment=name,
        date="2026-03-04T05:06:07Z",
        machine="a machine",
        version="1",
        rounds=3,
        quick=False,
        trials=trials,
    )


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    whole = saved([slim(trial, (*KEPT, GAPS)) for trial in made_trials(FIGURES)])
    write_saved(whole, tmp_path / "x.json")
    assert read_saved(tmp_path / "x.json") == whole


def test_texts_are_not_kept_and_times_to_five_digits() -> None:
    (trial,) = made_trials({"a": {}}, rounds=1)
    found = slim(trial, (*KEPT, GAPS))
    assert found.details["errors"] == [""] * 4
    assert "generated_texts" not in found.details
    assert found.details["itls"][0] == [0.02, 0.12346]
    assert found.samples == trial.samples
    assert "itls" not in slim(trial, KEPT).details


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"trials": 1}', b"\xff"])
def test_what_is_no_experiment_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"from: .*x.json holds no experiment's trials"):
        read_saved(tmp_path / "x.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"from: .*x.json: No such file"):
        read_saved(tmp_path / "x.json")


def test_a_directory_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match=r"output_dir"):
        prepare(tmp_path / "file" / "below")
