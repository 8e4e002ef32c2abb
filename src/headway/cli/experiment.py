"""`headway experiment`: the tuning guide's claims, tried on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from headway.bench.experiments.catalogue import EXPERIMENTS, experiment_named
from headway.bench.experiments.conduct import conduct, prepare, write_page
from headway.bench.experiments.experiment import Experiment, Finding
from headway.bench.experiments.report import lines_of
from headway.bench.experiments.saved import read_earlier, read_saved
from headway.bench.plots import check_plots
from headway.cli.terminal import Terminal
from headway.errors import HeadwayError, InvalidConfig
from headway.machine import describe_machine

__all__ = ["run"]

_ROUNDS = 3
_START_S = 7.0
"""What a server takes about to start, answer and end."""
_ALL = "all"


def run(args: argparse.Namespace) -> None:
    terminal = Terminal()
    if args.list:
        _refuse_others(args, "list")
        terminal.write("".join(f"{line}\n" for line in _listed()))
        return
    directory = Path(args.output_dir).expanduser()
    if args.source is not None:
        _refuse_others(args, "from")
        check_plots("output_dir")
        saved = read_saved(Path(args.source).expanduser())
        experiment = experiment_named(saved.experiment)
        prepare(directory)
        _tell(terminal, experiment, write_page(experiment, saved, directory), directory)
        return
    chosen = _chosen(args)
    check_plots("output_dir")
    prepare(directory)
    _measure(args, terminal, chosen, directory)


def _measure(
    args: argparse.Namespace, terminal: Terminal, chosen: Sequence[Experiment], directory: Path
) -> None:
    """One after the other. Of several, one that fails is told and the others go on; then, at the
    end, raises HeadwayError that names them."""
    rounds = args.rounds or (1 if args.quick else _ROUNDS)
    machine = describe_machine()
    earlier = {
        each.name: read_earlier(directory, each.name, machine=machine, quick=args.quick)
        for each in chosen
        if args.add
    }
    failed = []
    for experiment in chosen:
        terminal.say(f"{experiment.title} ({experiment.name})")
        try:
            findings = conduct(
                experiment,
                directory,
                rounds=rounds,
                in_short=args.quick,
                now=datetime.now(UTC),
                machine=machine,
                say=terminal.say,
                earlier=earlier.get(experiment.name),
            )
        except HeadwayError as error:
            if len(chosen) == 1:
                raise
            terminal.say(f"{experiment.name} failed: {error}")
            failed.append(experiment.name)
        else:
            _tell(terminal, experiment, findings, directory)
    if failed:
        raise HeadwayError(f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}")


def _chosen(args: argparse.Namespace) -> list[Experiment]:
    """Raises HeadwayError that says what there is."""
    if args.name is None:
        raise HeadwayError("which experiment? `headway experiment --list` shows them; all runs all")
    if args.name == _ALL:
        return list(EXPERIMENTS.values())
    return [experiment_named(args.name)]


def _refuse_others(args: argparse.Namespace, option: str) -> None:
    """What would be measured cannot be said along with it."""
    given = {"name": args.name, "rounds": args.rounds, "quick": args.quick or None}
    given["add"] = args.add or None
    if option == "list":
        given["from"] = args.source
    for name, value in given.items():
        if value is not None:
            raise InvalidConfig(option, f"measures nothing, so {name} has no meaning beside it")


def _listed() -> list[str]:
    width = max(map(len, EXPERIMENTS))
    lines = [
        f"{name:<{width}}  {_minutes(each, _ROUNDS):>3} min  {each.title}"
        for name, each in EXPERIMENTS.items()
    ]
    total = sum(_minutes(each, _ROUNDS) for each in EXPERIMENTS.values())
    return [*lines, f"{_ALL:<{width}}  {total:>3} min  all of them, one after the other"]


def _minutes(experiment: Experiment, rounds: int) -> int:
    tried_s = _START_S * len(experiment.variants)  # each is started once before all rounds
    return max(1, round((experiment.round_s * rounds + tried_s) / 60))


def _tell(
    terminal: Terminal, experiment: Experiment, findings: list[Finding], directory: Path
) -> None:
    terminal.write("".join(f"{line}\n" for line in lines_of(findings)))
    terminal.say(f"Written to {directory / experiment.name}.html")
