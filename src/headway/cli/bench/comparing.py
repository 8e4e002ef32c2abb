"""The options of `headway compare` and `headway bench sweep`."""

from __future__ import annotations

import argparse
from typing import Any

from headway.cli.bench.loads import add_load_options
from headway.cli.bench.values import above_zero, natural
from headway.cli.options import count

__all__ = ["add_compare_options", "add_sweep_options"]


def add_compare_options(compare: argparse.ArgumentParser) -> None:
    group = compare.add_argument_group("servers")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="NAME=VALUE",
        help="one change to the baseline, as max_num_seqs=64 or recipe=chat; a,b changes both at "
        "once; repeatable: each is measured beside the baseline",
    )
    _add_server_options(group)
    _add_run_options(compare, rounds=5)


def add_sweep_options(sweep: argparse.ArgumentParser) -> None:
    group = sweep.add_argument_group("servers")
    group.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="an option of headway serve and its values, as max_num_seqs=16,64; repeatable: every "
        "combination is measured",
    )
    _add_server_options(group)
    load = _add_run_options(sweep, rounds=3)
    load.add_argument(
        "--request-rate",
        dest="request_rates",
        type=_rates,
        metavar="R,R",
        help="requests per second, at each of which all of the grid is measured; inf: all at once",
    )
    load.add_argument(
        "--rate-scale",
        dest="rate_scales",
        type=_rates,
        metavar="X,X",
        help="the rates of a --workload or a trace, times so much; at each of which likewise",
    )
    best = sweep.add_argument_group("the best point")
    best.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="is that of most requests within all of these: ttft, tpot, e2el, as ttft:500 "
        "(default: that of most output tokens per second)",
    )
    best.add_argument(
        "--max-ttft-ms",
        type=above_zero,
        metavar="MS",
        help="of the points whose TTFT, p99 is at most this (any)",
    )


def _rates(text: str) -> list[float]:
    rates = [above_zero(part) for part in text.split(",")]
    if len(set(rates)) < len(rates):
        raise ValueError
    return rates


_rates.__name__ = "list of different rates"


def _add_server_options(group: Any) -> None:
    group.add_argument("--model", metavar="MODEL", help="of all; default: as headway serve")
    group.add_argument(
        "serve_options",
        nargs="*",
        metavar="-- OPTIONS",
        help="options of headway serve for all of them, after --",
    )


def _add_run_options(parser: argparse.ArgumentParser, *, rounds: int) -> Any:
    """The group of the load is returned."""
    load = parser.add_argument_group("load, in each round of another seed")
    add_load_options(load)
    # In place of those of `bench serve`: the parser's conflict_handler is "resolve".
    load.add_argument(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="of the first round's load, and of the order of measuring (%(default)s)",
    )
    load.add_argument(
        "--num-warmups",
        type=count,
        default=4,
        metavar="N",
        help="short requests before each load that do not count (%(default)s)",
    )
    load.add_argument(
        "--rounds",
        type=count,
        metavar="N",
        help=f"times to measure each, in a new order every time ({rounds})",
    )
    results = parser.add_argument_group("results")
    for form, text in (
        ("json", "all figures, and by request what the plots need"),
        ("csv", "a row for each server that was started"),
        ("html", "a page with tables and plots; needs pip install 'headway[report]'"),
    ):
        results.add_argument(f"--output-{form}", metavar="FILE", help=text)
    results.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="report what a --output-json holds, and measure nothing",
    )
    return load
