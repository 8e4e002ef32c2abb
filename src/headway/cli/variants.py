"""Ways to run a server, as `compare` and `bench sweep` take them from the command line."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec

from headway import __version__
from headway.bench.comparison import Comparison, Goal, to_csv, to_json
from headway.bench.comparison_report import make_page
from headway.bench.figures import Wanted
from headway.bench.keeping import write_output
from headway.bench.plots import check_plots
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant, run_trials
from headway.cli.options import engine_options, server_settings
from headway.cli.parser import build_parser
from headway.cli.terminal import Terminal
from headway.config import EngineArgs
from headway.errors import InvalidConfig
from headway.machine import describe_machine
from headway.server.settings import ServerSettings
from headway.workload import Workload

__all__ = [
    "check_outputs",
    "check_serve",
    "common_options",
    "load_of",
    "measure_and_report",
    "refuse_beside_from",
    "serve_option",
    "settings",
    "write_outputs",
]

_KINDS = {
    item.name: str(item.type).split(" ", maxsplit=1)[0]
    for item in (*fields(EngineArgs), *fields(ServerSettings))
}
_OURS = ("host", "port", "uds", "ssl_certfile", "ssl_keyfile", "root_path", "api_key")
_OURS_TOO = ("api_key_file", "metrics_namespace")
_OUTPUTS = ("output_json", "output_csv", "output_html")
_REPORTING = (*_OUTPUTS, "source", "max_ttft_ms")
_SHOWN = {
    "sets": "--set",
    "request_rates": "--request-rate",
    "rate_scales": "--rate-scale",
    "serve_options": "an option of headway serve",
}
"""Options whose name in the namespace is another."""
_ON, _OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


def settings(option: str, text: str) -> dict[str, str]:
    """`max_num_seqs=64,block_size=32` by names, with _. A comma begins a setting only where a name
    of an option follows, so values may have some.

    Raises InvalidConfig, naming `option`, for what is none.
    """
    found: dict[str, str] = {}
    last = None
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if equals and (name in _KINDS or last is None):
            _check_name(option, name)
            if name in found:
                raise InvalidConfig(option, f"{text!r} has {name} twice")
            found[name], last = value.strip(), name
        elif last is None:
            raise InvalidConfig(option, f"must be like max_num_seqs=64, not {text!r}")
        else:
            found[last] += f",{part}"
    return found


def _check_name(option: str, name: str) -> None:
    if name not in _KINDS:
        close = difflib.get_close_matches(name, _KINDS, n=1)
        hint = f"; {close[0]} is" if close else ""
        raise InvalidConfig(option, f"{name} is no option of headway serve{hint}")


def serve_option(option: str, name: str, value: str) -> str:
    """As `headway serve` takes it. Raises InvalidConfig for a switch that is neither on nor off."""
    flag = name.replace("_", "-")
    if _KINDS[name] != "bool":
        return f"--{flag}={value}"
    if value.lower() not in (*_ON, *_OFF):
        raise InvalidConfig(option, f"{name} must be on or off, not {value!r}")
    return f"--{flag}" if value.lower() in _ON else f"--no-{flag}"


def check_serve(options: Sequence[str]) -> None:
    """Refuses what `headway serve` would, in its own words, and what is not its to say here."""
    parsed = build_parser().parse_args(["serve", *options])
    given = {**getattr(parsed, "config", {}), **vars(parsed)}
    for name in (*_OURS, *_OURS_TOO):
        if name in given:
            raise InvalidConfig(name, "is not for servers that are started to be measured")
    EngineArgs.of(engine_options(parsed))
    server_settings(parsed)


def common_options(args: argparse.Namespace) -> tuple[str, ...]:
    """Of all variants."""
    model = () if args.model is None else (f"--model={args.model}",)
    return (*model, *args.serve_options)


def load_of(workload: Workload, args: argparse.Namespace, goodput: dict[str, float]) -> Load:
    metrics = ("ttft", "tpot", "itl", "e2el")
    return Load(
        workload=workload,
        seeds=(args.seed,),
        text=False,
        max_concurrency=args.max_concurrency,
        num_warmups=args.num_warmups,
        wanted=Wanted(metrics=metrics, percentiles=(99,), goodput=goodput),
    )


def refuse_beside_from(args: argparse.Namespace, command: Sequence[str]) -> None:
    """What is measured cannot be said along with what was: no option of the command may differ
    from its default but those that say what to report."""
    for name, default in vars(build_parser().parse_args(command)).items():
        if name not in _REPORTING and getattr(args, name) != default:
            option = _SHOWN.get(name, f"--{name.replace('_', '-')}")
            raise InvalidConfig("from", f"measures nothing, so {option} has no meaning beside it")


def check_outputs(args: argparse.Namespace) -> None:
    """Before anything is measured. Raises InvalidConfig for a file that cannot be written."""
    for name in _OUTPUTS:
        if (given := getattr(args, name)) is None:
            continue
        path = Path(given).expanduser()
        target = path if path.exists() else path.parent
        if path.is_dir() or not os.access(target, os.W_OK):
            raise InvalidConfig(name, f"cannot write {path}")
    if args.output_html is not None:
        check_plots("output_html")


def write_outputs(
    args: argparse.Namespace, comparison: Comparison, say: Callable[[str], None]
) -> None:
    texts: tuple[Callable[[Comparison], str], ...] = (
        to_json,
        to_csv,
        lambda each: make_page(each).html(),
    )
    for name, text in zip(_OUTPUTS, texts, strict=True):
        if (given := getattr(args, name)) is not None:
            path = Path(given).expanduser()
            write_output(name, path, text(comparison))
            say(f"Written to {path}")


def measure_and_report(
    args: argparse.Namespace,
    variants: Sequence[Variant],
    load: Load,
    terminal: Terminal,
    tell: Callable[[Comparison, Terminal], None],
    *,
    rounds: int,
    baseline: str | None,
    goal: Goal | None = None,
) -> None:
    """Runs the trials of all variants, tells what came of them, and writes what `args` asks for.
    What cuts that short, also an interrupt, is raised once the whole rounds were reported."""
    comparison = Comparison(
        command=shlex.join(["headway", *sys.argv[1:]]),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=describe_machine(),
        version=__version__,
        options={variant.name: variant.options for variant in variants},
        workloads={variant.name: _sent(variant.load or load, args.seed) for variant in variants},
        baseline=baseline,
        goal=goal,
        trials=(),
    )
    trials: list[Trial] = []
    say, keep = terminal.say, trials.extend
    try:
        run_trials(variants, load, rounds=rounds, say=say, seed=args.seed, on_round=keep)
    finally:
        if trials:
            comparison = replace(comparison, trials=trials)
            if comparison.rounds < rounds:
                say(f"Cut short: this is of {comparison.rounds} of {rounds} rounds.")
            tell(comparison, terminal)
            write_outputs(args, comparison, say)


def _sent(load: Load, seed: int) -> Mapping[str, Any]:
    """What the first round sends."""
    workload = msgspec.structs.replace(load.workload, seed=seed)
    return cast("Mapping[str, Any]", msgspec.to_builtins(workload))
