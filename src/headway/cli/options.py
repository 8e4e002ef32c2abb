"""Options that commands share: of sampling, one per field of `SamplingParams`, and of the
engine, one per field of `EngineArgs`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.config import EngineArgs
from headway.errors import InvalidConfig, InvalidRequest

__all__ = [
    "SAMPLING_FLAGS",
    "add_engine_options",
    "add_model_argument",
    "add_sampling_options",
    "cache_dir",
    "count",
    "engine_options",
    "sampling_options",
]


def count(text: str) -> int:
    """An option's value that counts something."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


count.__name__ = "number from 1"  # argparse shows it: "invalid number from 1 value: …"

_PREFIX = "sampling_"
"""Of the sampling options' names in a namespace: `seed` is one of the engine's too."""


def _bias(text: str) -> tuple[int, float]:
    token, separator, bias = text.partition("=")
    if not separator:
        raise ValueError
    return int(token), float(bias)


_bias.__name__ = "ID=BIAS"  # argparse shows it: "invalid ID=BIAS value: …"

_SAMPLING: tuple[tuple[str, str, Callable[[str], Any] | None, str, str], ...] = (
    ("--max-tokens", "max_tokens", int, "N", "most output tokens (%(max_tokens)s)"),
    ("--min-tokens", "min_tokens", int, "N", "least output tokens (0)"),
    ("--temperature", "temperature", float, "T", "0: greedy (%(temperature)s)"),
    ("--top-p", "top_p", float, "P", "sample among the likeliest tokens that reach P (1)"),
    ("--top-k", "top_k", int, "K", "sample among the K likeliest tokens; 0: all (0)"),
    ("--min-p", "min_p", float, "P", "leave out tokens below this share of the likeliest (0)"),
    ("--presence-penalty", "presence_penalty", float, "X", "on tokens in the output (0)"),
    ("--frequency-penalty", "frequency_penalty", float, "X", "the same, for each time (0)"),
    (
        "--repetition-penalty",
        "repetition_penalty",
        float,
        "X",
        "on tokens in prompt and output (1)",
    ),
    ("--logit-bias", "logit_bias", _bias, "ID=BIAS", "added to a token's logit; repeatable"),
    ("--allowed-token-id", "allowed_token_ids", int, "ID", "only these are sampled; repeatable"),
    ("--bad-word", "bad_words", str, "TEXT", "is kept out of the output; repeatable"),
    ("--stop", "stop", str, "TEXT", "ends the output; repeatable"),
    ("--stop-token-id", "stop_token_ids", int, "ID", "a token that ends the output; repeatable"),
    ("--ignore-eos", "ignore_eos", None, "", "go on past the end-of-sequence token"),
    ("--seed", "seed", int, "N", "makes sampling repeatable"),
)
"""Flag, field, type of one value (None: there is none), its name and help text."""

SAMPLING_FLAGS: Mapping[str, str] = MappingProxyType({name: flag for flag, name, *_ in _SAMPLING})
"""Field of `SamplingParams` → the option that sets it."""


def add_sampling_options(
    parser: argparse.ArgumentParser, *, max_tokens: str, temperature: str, note: str | None = None
) -> None:
    """`max_tokens` and `temperature`: what the command takes where they are not given."""
    group = parser.add_argument_group("sampling", note)
    defaults = {"max_tokens": max_tokens, "temperature": temperature}
    for flag, name, kind, metavar, text in _SAMPLING:
        settings: dict[str, Any] = {"type": kind, "metavar": metavar}
        if kind is None:
            settings = {"action": "store_true"}
        elif text.endswith("; repeatable"):
            settings["action"] = "append"
        group.add_argument(
            flag,
            dest=_PREFIX + name,
            default=argparse.SUPPRESS,
            help=(text % defaults).replace("%", "%%"),
            **settings,
        )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, by their names in `SamplingParams`."""
    given = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(_PREFIX)
    }
    if biases := given.get("logit_bias"):
        given["logit_bias"] = dict(biases)
        if len(given["logit_bias"]) < len(biases):
            raise InvalidRequest("logit_bias", "a token is given twice")
    return given


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """The model may be given without `--model`, as for vLLM's `serve`."""
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")


def add_engine_options(
    parser: argparse.ArgumentParser, *, leave_out: frozenset[str] = frozenset()
) -> None:
    """One option per field of `EngineArgs`, its help text and default from there."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for item in fields(EngineArgs):
        if item.name in leave_out:
            continue
        title = item.metadata["group"]
        group = groups.setdefault(title, parser.add_argument_group(title))
        settings: dict[str, Any] = {"default": item.default}
        shown = "" if item.default is None else f" (default: {item.default})"
        kind = str(item.type).split(" ", maxsplit=1)[0]
        if kind == "bool":
            settings["action"] = argparse.BooleanOptionalAction
            if item.default is not None:
                shown = f" (default: {'on' if item.default else 'off'})"
        elif item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        else:
            settings["type"] = {"int": int, "float": float, "str": str}[kind]
            settings["metavar"] = "N" if kind in ("int", "float") else item.name.upper()
        settings["help"] = (item.metadata["help"] + shown).replace("%", "%%")
        group.add_argument("--" + item.name.replace("_", "-"), **settings)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """By their names in `EngineArgs`. Raises InvalidConfig for a model that is given twice."""
    given = vars(args)
    options = {item.name: given[item.name] for item in fields(EngineArgs) if item.name in given}
    if model := given.get("model_argument"):
        if options["model"] is not None:
            raise InvalidConfig("model", f"{options['model']} is given, and {model} as well")
        options["model"] = model
    return options


def cache_dir(args: argparse.Namespace) -> Path | None:
    return None if args.cache_dir is None else Path(args.cache_dir).expanduser()
