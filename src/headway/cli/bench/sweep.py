"""`headway bench sweep`: a grid of the server's options, and of loads."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from headway.bench.best import best_point
from headway.bench.cautions import cautions
from headway.bench.comparison import Comparison, Goal, read_comparison
from headway.bench.comparison_report import counter_table, point_table
from headway.bench.serving import Load
from headway.bench.trials import Variant
from headway.cli.bench.loads import workload_of
from headway.cli.bench.serve import goal as goal_of
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

__all__ = ["grid_of", "loads_of", "run"]

_ROUNDS = 3
_WITH_COMMAS = ("fair_weights",)


def run(args: argparse.Namespace) -> None:
    terminal = Terminal()
    check_outputs(args)
    if args.source is not None:
        refuse_beside_from(args, ["bench", "sweep"])
        comparison = read_comparison(Path(args.source).expanduser())
        if comparison.baseline is not None:
            raise InvalidConfig("from", f"{args.source} is of headway compare")
        if args.max_ttft_ms is not None and comparison.goal is not None:
            goal = replace(comparison.goal, max_ttft_ms=args.max_ttft_ms)
            comparison = replace(comparison, goal=goal)
        _tell(comparison, terminal)
        write_outputs(args, comparison, terminal.say)
    else:
        _measure(args, terminal)


def _measure(args: argparse.Namespace, terminal: Terminal) -> None:
    loads = loads_of(args)
    variants = [
        Variant(
            name=",".join(filter(None, (point, name))) or "defaults", options=options, load=load
        )
        for point, options in grid_of(args)
        for name, load in loads.items()
    ]
    if len(variants) < 2:
        raise HeadwayError(
            "sweep over what? --grid max_num_seqs=16,64 or --request-rate 1,2,4, or both; "
            "of a --workload, --rate-scale 0.5,1,2"
        )
    calm_collector()
    measure_and_report(
        args,
        variants,
        next(iter(loads.values())),
        terminal,
        _tell,
        rounds=args.rounds or _ROUNDS,
        baseline=None,
        goal=Goal(
            figure="request_goodput" if args.goodput else "output_throughput",
            max_ttft_ms=args.max_ttft_ms,
        ),
    )


def grid_of(args: argparse.Namespace) -> list[tuple[str, tuple[str, ...]]]:
    """Each point's name and its server's options; one, of no name, where there is no grid.

    Raises InvalidConfig (`grid`) for what is no option, or one whose values have commas; a value
    that is none ends the program, as `headway serve` would.
    """
    axes: dict[str, list[str]] = {}
    for text in args.grid:
        for name, values in settings("grid", text).items():
            if name in axes:
                raise InvalidConfig("grid", f"{name} is given twice")
            if name in _WITH_COMMAS:
                raise InvalidConfig(
                    "grid", f"{name} has values with commas; headway compare --set takes them"
                )
            axes[name] = [value.strip() for value in values.split(",")]
            if len(set(axes[name])) < len(axes[name]):
                raise InvalidConfig("grid", f"{name} has a value twice: {values}")
    points = []
    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        changed = (serve_option("grid", *item) for item in chosen.items())
        options = (*common_options(args), *changed)
        check_serve(options)
        points.append((",".join(f"{name}={value}" for name, value in chosen.items()), options))
    return points


def loads_of(args: argparse.Namespace) -> Mapping[str, Load]:
    """By what a point is named by beside the server's options, as `request_rate=2`; one, by
    nothing, where no rate is swept over."""
    goodput = dict(goal_of(pair) for pair in args.goodput)
    found = {}
    for rate, scale in product(args.request_rates or [None], args.rate_scales or [None]):
        own = copy.copy(args)
        own.request_rate = rate
        own.rate_scale = 1.0 if scale is None else scale
        named = {"request_rate": rate, "rate_scale": scale}
        name = ",".join(f"{key}={value:g}" for key, value in named.items() if value is not None)
        found[name] = load_of(workload_of(own), own, goodput)
    return found


def _tell(comparison: Comparison, terminal: Terminal) -> None:
    lines = table([*_whole(point_table(comparison))])
    lines += ["", "What the servers did (medians over the rounds):"]
    lines += table([*_whole(counter_table(comparison.trials))])
    if comparison.goal is not None:
        lines += ["", best_point(comparison.trials, comparison.goal)]
    terminal.write("".join(f"{line}\n" for line in lines))
    for note in cautions(comparison.trials):
        terminal.say(f"Note: {note}")


def _whole(found: tuple[list[str], list[list[str]]]) -> list[list[str]]:
    header, rows = found
    return [header, *rows]
