"""An experiment's page, and the index of all that lie in a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from headway.bench.cautions import saturated_rounds
from headway.bench.contrast import FIGURES
from headway.bench.experiments.experiment import Experiment, Finding
from headway.bench.experiments.saved import Saved, read_saved
from headway.bench.keeping import write_output
from headway.bench.page import Page
from headway.bench.serving import Load
from headway.bench.trials import Trial
from headway.bench.wording import loads_told, number
from headway.errors import InvalidConfig

__all__ = ["lines_of", "make_page", "write_index"]

INDEX = "index.md"


def make_page(experiment: Experiment, saved: Saved) -> Page:
    """`experiment` says how to judge and plot; what was measured is all in `saved`."""
    page = Page(experiment.title)
    page.text(experiment.summary, _measured(saved))
    page.heading("What came of it")
    page.table(
        ["claim", "verdict", "evidence"],
        [[each.claim, each.verdict, each.evidence] for each in experiment.judge(saved.trials)],
    )
    experiment.plot(saved.trials, page)
    page.heading("Figures")
    page.text("The middle of all rounds; in brackets the lowest and the highest.")
    page.table(*_figures(saved.trials, experiment.counters))
    page.heading("How it was run")
    page.table(
        ["variant", "headway serve"],
        [[each.name, " ".join(each.options) or "(defaults)"] for each in experiment.variants],
    )
    page.text(
        *loads_told(
            {each.name: _described(each.load or experiment.load) for each in experiment.variants}
        )
    )
    return page


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """For a terminal."""
    return [f"{each.verdict}: {each.claim}\n    {each.evidence}" for each in findings]


def write_index(directory: Path, experiments: Mapping[str, Experiment]) -> None:
    """`index.md`: a row for each claim of the experiments whose results lie there; one that says
    so for what cannot be read.

    Raises InvalidConfig (`output_dir`) where it cannot be written.
    """
    rows = []
    for name, experiment in experiments.items():
        path = directory / f"{name}.json"
        if path.exists():
            rows += _rows(name, path, experiment)
    text = "\n".join([*_HEAD, *rows]) + "\n"
    write_output("output_dir", directory / INDEX, text)


_HEAD = (
    "# Results of the experiments",
    "",
    "Written by `headway experiment`; not by hand.",
    "",
    "| experiment | claim | verdict | evidence | date | machine |",
    "|---|---|---|---|---|---|",
)


def _rows(name: str, path: Path, experiment: Experiment) -> list[str]:
    try:
        saved = read_saved(path)
    except InvalidConfig as error:
        said = str(error).removeprefix(f"{error.field}: ").replace(str(path), path.name)
        return [_row(name, "–", "unreadable", said, "–", "–")]
    note = ", quick" if saved.quick else ""
    return [
        _row(
            f"[{name}]({name}.html)",
            finding.claim,
            finding.verdict,
            finding.evidence,
            f"{saved.date[:10]}{note}",
            saved.machine,
        )
        for finding in experiment.judge(saved.trials)
    ]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _measured(saved: Saved) -> str:
    rounds = "1 round" if saved.rounds == 1 else f"{saved.rounds} rounds"
    models = ", ".join(dict.fromkeys(trial.model for trial in saved.trials))
    text = (
        f"Measured {saved.date} with Headway {saved.version} and {models or 'a model not told'} "
        f"on {saved.machine}, {rounds}."
    )
    if saved.quick:
        text += " With a fifth of the requests (--quick): no figure here means anything."
    return text


def _figures(trials: Sequence[Trial], counters: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    header = ["variant", *(f"{each.title} ({each.unit})" for each in FIGURES), "saturated rounds"]
    header += ["failed", *counters]
    rows = []
    for variant in dict.fromkeys(trial.variant for trial in trials):
        own = [trial for trial in trials if trial.variant == variant]
        read = [_range([trial.result.get(each.key) for trial in own]) for each in FIGURES]
        read += [saturated_rounds(own), _range([trial.result.get("failed") for trial in own])]
        read += [_range([trial.counters.get(name, 0.0) for trial in own]) for name in counters]
        rows.append([variant, *read])
    return header, rows


def _range(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    if not found:
        return "–"
    low, high = number(min(found)), number(max(found))
    middle = number(median(found))
    return middle if low == high else f"{middle} ({low}–{high})"


def _described(load: Load) -> str:
    return msgspec.json.encode(_said(msgspec.to_builtins(load.workload))).decode()


def _said(value: Any) -> Any:
    """Without fields that say nothing."""
    if isinstance(value, dict):
        found = {name: _said(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if each not in (None, {}, [])}
    return [_said(each) for each in value] if isinstance(value, list | tuple) else value
