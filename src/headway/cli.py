"""The command line: `headway generate | serve | pull | models`.

PyTorch is imported by the commands that run a model alone, so that the others start at once.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headway import __version__
from headway.config import EngineArgs
from headway.core.params import SamplingParams
from headway.errors import HeadwayError, InvalidConfig, InvalidRequest
from headway.models.sources import DEFAULT_MODEL, cache_directory, cached_models, pull

__all__ = ["main"]

_INTERRUPTED = 130
_FOR_MANY_REQUESTS = frozenset(
    {
        "long_prefill_token_threshold",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "max_num_seqs",
        "reserve_full_prompt",
        "scheduling_policy",
        "seed",
        "watermark",
    }
)
"""Engine options that mean nothing to a single request."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command; exits with 0, 1 for an error it explains, 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show costs no answer
    args = _parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    command: Callable[[argparse.Namespace], None] = args.command
    try:
        command(args)
    except InvalidConfig as error:
        option = "--" + error.field.replace("_", "-")
        sys.exit(f"headway: error: {option}{str(error).removeprefix(error.field)}")
    except HeadwayError as error:
        sys.exit(f"headway: error: {error}")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain when it flushes.
        sys.stdout = None


# -------------------------------------------------------------------- commands


def _generate(args: argparse.Namespace) -> None:
    params = SamplingParams(
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        seed=args.sampling_seed,
        stop=args.stop,
        stop_token_ids=args.stop_token_ids,
        ignore_eos=args.ignore_eos,
    )
    prompt = _read_stdin() if args.prompt == "-" else args.prompt
    if not prompt:
        raise InvalidRequest("prompt", "is empty")
    options = _engine_options(args)

    from headway.llm import LLM  # noqa: PLC0415  imports PyTorch

    llm = LLM(**options, max_num_seqs=1, progress=_say)
    tokens = llm.chat_tokens([{"role": "user", "content": prompt}]) if args.chat else prompt
    for delta in llm.stream(tokens, params):
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        if delta.error is not None:
            raise HeadwayError(delta.error)
    sys.stdout.write("\n")


def _serve(args: argparse.Namespace) -> None:
    from headway.server.run import bind, serve  # noqa: PLC0415

    sock = bind(args.host, args.port)  # before the model is loaded: a busy port is told at once
    engine_args = EngineArgs.of(_engine_options(args))

    from headway.llm import build_engine  # noqa: PLC0415  imports PyTorch

    started = time.monotonic()
    engine = build_engine(engine_args, progress=_say)
    _say(engine.banner())
    _say(f"Started in {time.monotonic() - started:.1f} s")
    serve(
        engine.asynchronous(),
        sock,
        served_model_name=args.served_model_name or engine.model.name,
        created=int(time.time()),
        access_log=args.access_log,
    )
    # All is answered and stopped; what is left, taking PyTorch down, can take seconds.
    sys.stdout.flush()
    os._exit(0)


def _pull(args: argparse.Namespace) -> None:
    print(pull(args.name, cache_dir=_cache_dir(args), progress=_say, verify=True))


def _models(args: argparse.Namespace) -> None:
    models = cached_models(_cache_dir(args))
    if not models:
        print(f"No models in {cache_directory(_cache_dir(args))}; `headway pull` fetches one.")
    for model in models:
        note = "  (default)" if model.is_default else ""
        print(f"{model.name}  {model.size_bytes / 1e6:,.0f} MB  {model.path}{note}")


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("prompt", f"standard input is not UTF-8: {error}") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cache_dir(args: argparse.Namespace) -> Path | None:
    return None if args.cache_dir is None else Path(args.cache_dir).expanduser()


def _engine_options(args: argparse.Namespace) -> dict[str, Any]:
    given = vars(args)
    return {item.name: given[item.name] for item in fields(EngineArgs) if item.name in given}


# --------------------------------------------------------------------- options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headway",
        description="Serve a language model to many users at once.",
        epilog="`headway COMMAND --help` explains a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    generate = _command(
        commands, _generate, "generate", "complete one prompt in the terminal, as it comes"
    )
    generate.add_argument("prompt", help="the text to go on from; - reads it from standard input")
    generate.add_argument(
        "--chat", action="store_true", help="put the prompt as a user's message, not as raw text"
    )
    _add_sampling_options(generate)
    _add_engine_options(generate, leave_out=_FOR_MANY_REQUESTS)

    serve = _command(commands, _serve, "serve", "serve OpenAI's API over HTTP")
    server = serve.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    server.add_argument(
        "--port", type=int, default=8000, help="port; 0: any free one (%(default)s)"
    )
    server.add_argument(
        "--served-model-name", help="the model's name in the API; default: the file's name"
    )
    server.add_argument("--access-log", action="store_true", help="log every request")
    _add_engine_options(serve)

    pulling = _command(commands, _pull, "pull", "fetch a model into the cache; print its path")
    pulling.add_argument("name", nargs="?", default=DEFAULT_MODEL, help="(%(default)s)")
    listing = _command(commands, _models, "models", "list the models in the cache")
    for command in (pulling, listing):
        command.add_argument("--cache-dir", help="where fetched models are kept")
    return parser


def _command(
    commands: Any, run: Callable[[argparse.Namespace], None], name: str, text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    parser.set_defaults(command=run)
    return parser


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("--max-tokens", type=int, default=128, metavar="N", help="most output tokens (%(default)s)")
    add("--min-tokens", type=int, default=0, metavar="N", help="least output tokens (%(default)s)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0: greedy (%(default)s)")
    add("--top-p", type=float, default=1.0, metavar="P", help="probability to keep (%(default)s)")
    add("--top-k", type=int, default=0, metavar="K", help="tokens to keep; 0: all (%(default)s)")
    add(
        "--min-p", type=float, default=0.0, metavar="P", help="share of the likeliest (%(default)s)"
    )
    add("--seed", type=int, dest="sampling_seed", metavar="N", help="makes sampling repeatable")
    add("--stop", action="append", default=[], metavar="TEXT", help="ends the output; repeatable")
    add(
        "--stop-token-id", action="append", type=int, default=[], dest="stop_token_ids",
        metavar="ID", help="a token that ends the output; repeatable",
    )  # fmt: skip
    add("--ignore-eos", action="store_true", help="go on past the end-of-sequence token")


def _add_engine_options(
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
        if isinstance(item.default, bool):
            settings["action"] = argparse.BooleanOptionalAction
            shown = f" (default: {'on' if item.default else 'off'})"
        elif item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        else:
            kind = str(item.type).split(" ", maxsplit=1)[0]
            settings["type"] = {"int": int, "float": float, "str": str}[kind]
            settings["metavar"] = "N" if kind in ("int", "float") else item.name.upper()
        settings["help"] = (item.metadata["help"] + shown).replace("%", "%%")
        group.add_argument("--" + item.name.replace("_", "-"), **settings)
