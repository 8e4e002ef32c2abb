"""Options that commands share: of sampling, one per field of `SamplingParams`, of the engine, one
per field of `EngineArgs`, and of the server, one per field of `ServerSettings`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.config import EngineArgs
from headway.errors import InvalidConfig, InvalidRequest
from headway.server.settings import ServerSettings

__all__ = [
    "SAMPLING_FLAGS",
    "add_engine_options",
    "add_model_argument",
    "add_sampling_options",
    "add_server_options",
    "cache_dir",
    "count",
    "engine_options",
    "sampling_options",
    "server_settings",
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
    (
        "--include-stop-str-in-output",
        "include_stop_str_in_output",
        None,
        "",
        "show the stop string too that ended the output (off)",
    ),
    (
        "--skip-special-tokens",
        "skip_special_tokens",
        None,
        "",
        "leave special tokens out of the text (on)",
    ),
    ("--ignore-eos", "ignore_eos", None, "", "go on past the end-of-sequence token (off)"),
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
            settings = {"action": argparse.BooleanOptionalAction}
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
    _add_options(parser, [item for item in fields(EngineArgs) if item.name not in leave_out])


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of `ServerSettings`, and `--config`, a file with those of both kinds."""
    known = (*fields(ServerSettings), *fields(EngineArgs))
    _add_options(parser, fields(ServerSettings))
    parser.add_argument(
        "--config",
        type=lambda path: _read_config(path, known),
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="YAML file with options, as `port: 8000`; those of the command line win",
    )


def _add_options(parser: argparse.ArgumentParser, known: Sequence[Field[Any]]) -> None:
    """What is not given is not in the namespace, so that the file of `--config` can say it."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for item in known:
        title = item.metadata["group"]
        group = groups.setdefault(title, parser.add_argument_group(title))
        settings: dict[str, Any] = {"default": argparse.SUPPRESS}
        shown = "" if item.default in (None, (), "") else f" (default: {item.default})"
        kind = str(item.type).split(" ", maxsplit=1)[0]
        if kind == "bool":
            settings["action"] = argparse.BooleanOptionalAction
            if item.default is not None:
                shown = f" (default: {'on' if item.default else 'off'})"
        elif item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        elif kind == "tuple[str,":
            settings |= {"action": "append", "metavar": item.name.upper()}
        else:
            settings["type"] = {"int": int, "float": float, "str": str}[kind]
            settings["metavar"] = "N" if kind in ("int", "float") else item.name.upper()
        settings["help"] = (item.metadata["help"] + shown).replace("%", "%%")
        group.add_argument("--" + item.name.replace("_", "-"), **settings)


def _read_config(path: str, known: Sequence[Field[Any]]) -> dict[str, Any]:
    from headway.cli.config_file import read_config  # noqa: PLC0415  imports a parser of YAML

    try:
        return read_config(path, known)
    except InvalidConfig as error:
        reason = str(error).removeprefix("config: ")
        raise argparse.ArgumentTypeError(reason) from None


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, by their names in `EngineArgs`. Raises InvalidConfig for a model that
    is given twice."""
    given = vars(args)
    if model := given.get("model_argument"):
        if "model" in given:
            raise InvalidConfig("model", f"{given['model']} is given, and {model} as well")
        given = {**given, "model": model}
    return _given(given, EngineArgs)


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """Raises InvalidConfig, naming it, for an option that cannot be honoured."""
    options = _given(vars(args), ServerSettings)
    return ServerSettings.of(
        {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
        }
    )


def _given(given: Mapping[str, Any], kind: type[EngineArgs | ServerSettings]) -> dict[str, Any]:
    """The command line's options of that kind, before the file's."""
    options = {**given.get("config", {}), **given}
    return {item.name: options[item.name] for item in fields(kind) if item.name in options}


def cache_dir(args: argparse.Namespace) -> Path | None:
    path = getattr(args, "cache_dir", None)
    return None if path is None else Path(path).expanduser()
