"""Runs an experiment, judges it, and writes what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from headway import __version__
from headway.bench.experiments.catalogue import EXPERIMENTS
from headway.bench.experiments.experiment import Experiment, Finding, quick
from headway.bench.experiments.report import make_page, write_index
from headway.bench.experiments.saved import GAPS, KEPT, Saved, write_saved
from headway.bench.keeping import slim, write_output
from headway.bench.trials import run_trials
from headway.errors import InvalidConfig

__all__ = ["conduct", "prepare", "write_page"]


def prepare(directory: Path) -> None:
    """Makes the directory before anything is measured. Raises InvalidConfig (`output_dir`)."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig("output_dir", f"{directory}: {error.strerror or error}") from None


def conduct(
    experiment: Experiment,
    directory: Path,
    *,
    rounds: int,
    in_short: bool,
    now: datetime,
    machine: str,
    say: Callable[[str], None],
    earlier: Saved | None = None,
) -> list[Finding]:
    """Measures, and writes NAME.json, NAME.html and the index into `directory`.

    Args:
        experiment: as the catalogue has it.
        directory: exists.
        rounds: how often each variant is measured.
        in_short: with a fifth of the requests.
        now: the date that the results bear, in UTC, unless they go on from earlier ones.
        machine: what they were measured on, in words.
        say: is told of each trial.
        earlier: what the rounds go on from; all are judged together.

    Raises HeadwayError where a server does not start, or all requests of a trial fail.
    """
    run = quick(experiment) if in_short else experiment
    num_before = 0 if earlier is None else earlier.rounds
    trials = [] if earlier is None else [*earlier.trials]
    more = run_trials(run.variants, run.load, rounds=rounds, say=say, seed=num_before)
    trials += [replace(trial, round=trial.round + num_before) for trial in more]
    kept = (*KEPT, GAPS) if experiment.plots_gaps else KEPT
    saved = Saved(
        experiment=experiment.name,
        date=now.strftime("%Y-%m-%dT%H:%M:%SZ") if earlier is None else earlier.date,
        machine=machine,
        version=__version__,
        rounds=num_before + rounds,
        quick=in_short,
        trials=[slim(trial, kept) for trial in trials],
    )
    write_saved(saved, directory / f"{experiment.name}.json")
    return write_page(experiment, saved, directory)


def write_page(experiment: Experiment, saved: Saved, directory: Path) -> list[Finding]:
    """The page of what was measured, and the index of all in the directory.

    Raises InvalidConfig (`from`) where `saved` lacks a variant: another version measured it.
    """
    missing = {each.name for each in experiment.variants} - {each.variant for each in saved.trials}
    if missing:
        lacks = ", ".join(sorted(missing))
        raise InvalidConfig("from", f"what Headway {saved.version} measured lacks {lacks}")
    shown = quick(experiment) if saved.quick else experiment
    path = directory / f"{experiment.name}.html"
    write_output("output_dir", path, make_page(shown, saved).html())
    write_index(directory, EXPERIMENTS)
    return experiment.judge(saved.trials)
