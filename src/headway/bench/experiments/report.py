"""An experiment's page, and the index of all that lie in a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from headway.bench.contrast import FIGURES
from headway.bench.experiments.experiment import Experiment, Finding
from headway.bench.experiments.saved import Saved, read_saved
from headway.bench.page import Page
from headway.bench.serving import Load
from headway.bench.trials import Trial
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
    loads: dict[str, list[str]] = {}
    for variant in experiment.variants:
        text = _described(variant.load or experiment.load)
        loads.setdefault(text, []).append(variant.name)
    for text, names in loads.items():
        of = "" if len(loads) == 1 else f" of {', '.join(names)}"
        page.text(f"The load{of}: {text}")
    return page


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """For a terminal."""
    return [f"{each.verdict}: {each.claim}\n    {each.evidence}" for each in findings]


def write_index(directory: Path, experiments: Mapping[str, Experiment]) -> None:
    """`index.md`: a row for each claim of the experiments whose results lie there.

    Raises InvalidConfig (`output_dir`) where it cannot be written.
    """
    rows = []
    for name, experiment in experiments.items():
        path = directory / f"{name}.json"
        if path.exists():
            saved = read_saved(path)
            rows += [_row(saved, each) for each in experiment.judge(saved.trials)]
    text = "\n".join([*_HEAD, *rows]) + "\n"
    try:
        (directory / INDEX).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfig("output_dir", f"{directory}: {error.strerror or error}") from None


_HEAD = (
    "# Results of the experiments",
    "",
    "Written by `headway experiment`; not by hand.",
    "",
    "| experiment | claim | verdict | evidence | date | machine |",
    "|---|---|---|---|---|---|",
)


def _row(saved: Saved, finding: Finding) -> str:
    name = saved.experiment
    note = ", quick" if saved.quick else ""
    cells = (
        f"[{name}]({name}.html)",
        finding.claim,
        finding.verdict,
        finding.evidence,
        f"{saved.date[:10]}{note}",
        saved.machine,
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _measured(saved: Saved) -> str:
    rounds = "1 round" if saved.rounds == 1 else f"{saved.rounds} rounds"
    text = f"Measured {saved.date} with Headway {saved.version} on {saved.machine}, {rounds}."
    if saved.quick:
        text += " With a fifth of the requests (--quick): no figure here means anything."
    return text


def _figures(trials: Sequence[Trial], counters: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    header = ["variant", *(f"{each.title} ({each.unit})" for each in FIGURES), "failed", *counters]
    rows = []
    for variant in dict.fromkeys(trial.variant for trial in trials):
        own = [trial for trial in trials if trial.variant == variant]
        read = [_range([trial.result.get(each.key) for trial in own]) for each in FIGURES]
        read.append(_range([trial.result.get("failed") for trial in own]))
        read += [_range([trial.counters.get(name, 0.0) for trial in own]) for name in counters]
        rows.append([variant, *read])
    return header, rows


def _range(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    if not found:
        return "–"
    low, high = _number(min(found)), _number(max(found))
    middle = _number(median(found))
    return middle if low == high else f"{middle} ({low}–{high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _described(load: Load) -> str:
    return msgspec.json.encode(_said(msgspec.to_builtins(load.workload))).decode()


def _said(value: Any) -> Any:
    """Without fields that say nothing."""
    if isinstance(value, dict):
        found = {name: _said(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if each not in (None, {}, [])}
    return [_said(each) for each in value] if isinstance(value, list | tuple) else value
