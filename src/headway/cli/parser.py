"""The commands and their options."""

from __future__ import annotations

import argparse
from typing import Any

from headway import __version__
from headway.cli.bench.comparing import add_compare_options
from headway.cli.bench.parser import add_bench
from headway.cli.options import (
    add_engine_options,
    add_model_argument,
    add_sampling_options,
    add_server_options,
    count,
)
from headway.cli.values import duration, pair
from headway.models.sources import DEFAULT_MODEL

__all__ = ["build_parser"]

_FOR_MANY_REQUESTS = frozenset(
    {
        "aging_tokens_per_s",
        "default_deadline_s",
        "fair_input_weight",
        "fair_output_weight",
        "fair_weights",
        "in_batch_prefix_sharing",
        "long_prefill_token_threshold",
        "max_logprobs",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "max_num_seqs",
        "max_preemptions",
        "max_skip_ahead",
        "preempt_for_priority",
        "preemption_mode",
        "priority_aging",
        "queue_timeout_s",
        "recipe",
        "record",
        "record_content",
        "reserve_full_prompt",
        "scheduling_policy",
        "seed",
        "swap_space",
        "watermark",
    }
)
"""Engine options that mean nothing to a single request."""


def build_parser() -> argparse.ArgumentParser:
    """`command` of the parsed arguments is the name of the module that runs them."""
    parser = argparse.ArgumentParser(
        prog="headway",
        description="Serve a language model to many users at once.",
        epilog="`headway COMMAND --help` explains a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_chat(commands)
    _add_generate(commands)
    _add_serve(commands)
    _add_pull(commands)
    _add_models(commands)
    _add_inspect(commands)
    _add_replay(commands)
    add_bench(_command(commands, "bench", "measure what things cost, and what users would see"))
    _add_compare(commands)
    _add_experiment(commands)
    _add_doctor(commands)
    _add_soak(commands)
    return parser


def _add_chat(commands: Any) -> None:
    chat = _command(commands, "chat", "talk with a model in the terminal")
    add_model_argument(chat)
    chat.add_argument("--system", metavar="TEXT", help="the system prompt; default: the model's")
    add_sampling_options(
        chat,
        max_tokens="what the context leaves",
        temperature="0.7",
        note="Where the model's generation_config has a default of its own, that holds instead.",
    )
    add_engine_options(chat, leave_out=_FOR_MANY_REQUESTS)


def _add_generate(commands: Any) -> None:
    generate = _command(commands, "generate", "complete one prompt in the terminal, as it comes")
    generate.add_argument("prompt", help="the text to go on from; - reads it from standard input")
    generate.add_argument(
        "--chat", action="store_true", help="put the prompt as a user's message, not as raw text"
    )
    add_sampling_options(generate, max_tokens="128", temperature="0")
    # What it does must not depend on the model's taste: its defaults are those in the help.
    add_engine_options(generate, leave_out=_FOR_MANY_REQUESTS | {"generation_config"})


def _add_serve(commands: Any) -> None:
    serve = _command(commands, "serve", "serve OpenAI's API over HTTP")
    add_model_argument(serve)
    add_server_options(serve)
    add_engine_options(serve)


def _add_pull(commands: Any) -> None:
    pull = _command(commands, "pull", "fetch a model into the cache; print its path")
    pull.add_argument(
        "name",
        nargs="?",
        default=DEFAULT_MODEL,
        help="a name, or org/name[:QUANTISATION] of the Hugging Face hub (%(default)s)",
    )
    _add_source_options(pull)


def _add_models(commands: Any) -> None:
    models = _command(commands, "models", "list the models in the cache, and in the hub's")
    models.add_argument("--cache-dir", help="where fetched models are kept")
    models.add_argument("--json", action="store_true", help="print JSON")


def _add_inspect(commands: Any) -> None:
    inspect = _command(commands, "inspect", "show what a model holds, and whether it runs here")
    inspect.add_argument(
        "name",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="a file, a directory, or the name of a cached model (%(default)s)",
    )
    _add_source_options(inspect)
    inspect.add_argument(
        "--max-model-len", type=int, metavar="N", help="tokens of one request; default: the model's"
    )
    inspect.add_argument(
        "--max-num-seqs", type=int, metavar="N", default=1, help="requests at once (%(default)s)"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")


def _add_replay(commands: Any) -> None:
    replay = _command(
        commands,
        "replay",
        "run a recording (serve --record) again: the same plans, or the first step that differs",
    )
    replay.add_argument("files", nargs="+", metavar="FILE", help="a recording; two with --diff")
    replay.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="run it with this option, as max_num_seqs=8 or recipe=chat; repeatable",
    )
    replay.add_argument(
        "--diff", action="store_true", help="compare two recordings instead, and run nothing"
    )
    replay.add_argument(
        "--partial", action="store_true", help="take a recording that was cut as far as it goes"
    )


def _add_soak(commands: Any) -> None:
    soak = _command(commands, "soak", "put the scheduler under random work and check it")
    soak.add_argument(
        "--steps", type=count, default=200_000, metavar="N", help="steps at least (%(default)s)"
    )
    soak.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the first trial (%(default)s)"
    )
    soak.add_argument(
        "--max-seconds", type=float, metavar="S", help="end after that long; default: never"
    )


def _add_compare(commands: Any) -> None:
    compare = _command(
        commands, "compare", "measure what a changed option of headway serve does, beyond noise"
    )
    compare.conflict_handler = "resolve"
    add_compare_options(compare)


def _add_experiment(commands: Any) -> None:
    experiment = _command(commands, "experiment", "try a claim of the tuning guide on this machine")
    experiment.add_argument("name", nargs="?", metavar="NAME", help="one of --list, or all")
    experiment.add_argument(
        "--list", action="store_true", help="show the experiments, and how long they take"
    )
    experiment.add_argument(
        "--rounds", type=count, metavar="N", help="times to measure each variant; default: 3"
    )
    experiment.add_argument(
        "--add",
        action="store_true",
        help="the rounds to those of the NAME.json in --output-dir, and judge all of them",
    )
    experiment.add_argument(
        "--output-dir",
        default="experiments",
        metavar="DIR",
        help="where NAME.html, NAME.json and an index.md of all results are put (%(default)s)",
    )
    experiment.add_argument(
        "--quick",
        action="store_true",
        help="one round with a fifth of the requests: to see that all runs, not to conclude",
    )
    experiment.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="make the page again from such a NAME.json, and measure nothing",
    )


def _add_doctor(commands: Any) -> None:
    doctor = _command(
        commands,
        "doctor",
        "watch a server, or read a recording: what is wrong, why, what to change",
    )
    doctor.add_argument(
        "targets",
        nargs="+",
        metavar="URL",
        help="a server's address (Headway's or vLLM's), or a recording (serve --record)",
    )
    doctor.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        metavar="TIME",
        help="how long to watch, as 60s or 5m; of a recording, its last part (60s; all of it)",
    )
    doctor.add_argument(
        "--every",
        dest="every_s",
        type=duration,
        metavar="TIME",
        help="time between two looks at a server, as 1s or 200ms (1s)",
    )
    doctor.add_argument(
        "--header",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="sent with every request, as 'Authorization=Bearer KEY'; repeatable",
    )
    doctor.add_argument("--insecure", action="store_true", help="take any TLS certificate")
    shown = doctor.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument(
        "--watch", action="store_true", help="redraw the terminal until Ctrl-C; judges --for"
    )


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--revision", help="branch, tag or commit of a model from the hub")
    parser.add_argument("--cache-dir", help="where fetched models are kept")


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    parser.set_defaults(command=name)
    return parser
