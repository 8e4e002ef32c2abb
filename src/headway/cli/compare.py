"""`headway compare`: the same load against the defaults, and against one change at a time."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.bench.cautions import cautions
from headway.bench.comparison import Comparison, read_comparison
from headway.bench.comparison_report import (
    CHANGE_HEADER,
    by_chance,
    change_rows,
    counter_table,
    moved,
)
from headway.bench.contrast import contrasts
from headway.bench.trials import Variant
from headway.cli.bench.loads import workload_of
from headway.cli.tables import table
from headway.cli.terminal import Terminal
from headway.cli.variants import (
    check_outputs,
    check_serve,
    common_options,
    load_of,
    measure_and_report,
    refuse_beside_from,
    serve_option,
    settings,
    write_outputs,
)
from headway.engine.collector import calm_collector
from headway.errors import HeadwayError, InvalidConfig

__all__ = ["run", "variants_of"]

_BASELINE = "baseline"
_ROUNDS = 5


def run(args: argparse.Namespace) -> None:
    terminal = Terminal()
    check_outputs(args)
    if args.source is not None:
        refuse_beside_from(args, ["compare"])
        comparison = read_comparison(Path(args.source).expanduser())
        if comparison.baseline is None:
            raise InvalidConfig("from", f"{args.source} is of headway bench sweep")
        _tell(comparison, terminal)
        write_outputs(args, comparison, terminal.say)
    else:
        variants = variants_of(args)
        load = load_of(workload_of(args), args, {})
        calm_collector()
        rounds = args.rounds or _ROUNDS
        measure_and_report(args, variants, load, terminal, _tell, rounds=rounds, baseline=_BASELINE)


def variants_of(args: argparse.Namespace) -> list[Variant]:
    """The baseline, and one for each `--set`; each as a server would take it.

    Raises InvalidConfig (`set`) for what is no option, or no change; a value that is none ends the
    program, as `headway serve` would.
    """
    if not args.sets:
        raise HeadwayError("compare what? --set max_num_seqs=64 is one change; repeatable")
    common = common_options(args)
    variants = [Variant(name=_BASELINE, options=common)]
    for text in args.sets:
        found = settings("set", text)
        name = ",".join(f"{name}={value}" for name, value in found.items())
        if name in {variant.name for variant in variants}:
            raise InvalidConfig("set", f"{name} is given twice")
        changed = (serve_option("set", *item) for item in found.items())
        variants.append(Variant(name=name, options=(*common, *changed)))
    for variant in variants:
        check_serve(variant.options)
    return variants


def _tell(comparison: Comparison, terminal: Terminal) -> None:
    assert comparison.baseline is not None
    changes = contrasts(comparison.trials, comparison.baseline)
    lines: list[str] = []
    for variant in dict.fromkeys(change.variant for change in changes):
        own = [change for change in changes if change.variant == variant]
        lines += [f"{variant}, beside {comparison.baseline}:"]
        lines += table([CHANGE_HEADER, *change_rows(own)])
        lines += [moved(own, comparison.trials, comparison.baseline), ""]
    header, rows = counter_table(comparison.trials)
    lines += ["What the servers did (medians over the rounds):", *table([header, *rows])]
    terminal.write("".join(f"{line}\n" for line in lines))
    for note in (*cautions(comparison.trials), *filter(None, [by_chance(changes)])):
        terminal.say(f"Note: {note}")
