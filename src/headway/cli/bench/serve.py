"""`headway bench serve`: load for a server, and what its users would see."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from headway.bench.figures import METRICS, Wanted
from headway.bench.report import DETAILS, notes, report, result_name
from headway.bench.serving import Load, Measured, Server, measure_server
from headway.cli.bench.loads import load_name, load_settings, workload_of
from headway.cli.bench.parser import SAMPLING_FIELDS
from headway.cli.terminal import Terminal
from headway.engine.collector import calm_collector
from headway.errors import InvalidConfig

__all__ = ["goal", "run"]

_GOODPUT = ("ttft", "tpot", "e2el")


def run(args: argparse.Namespace) -> None:
    terminal = Terminal()
    server, load = _server(args), _load(args)
    directory = _result_directory(args)
    calm_collector()
    measured = measure_server(
        server, load, say=terminal.say, progress=not args.disable_tqdm and sys.stderr.isatty()
    )
    settings = _settings(args, load, measured)
    shown = {**settings, **measured.result}
    for line in report(shown, load.wanted):
        terminal.write(line + "\n")
    traces = measured.result.get("traces", ())
    shared = load.workload.shares_prefixes or any(each["shares_prefixes"] for each in traces)
    for note in notes(measured.result, shared_prefixes=shared):
        terminal.say(f"Note: {note}")
    if directory is not None:
        terminal.say(f"Written to {_save(args, directory, settings, measured)}")


def _server(args: argparse.Namespace) -> Server:
    chat = args.backend == "openai-chat"
    host = f"[{args.host}]" if ":" in args.host else args.host
    headers = dict(args.header)
    key = os.environ.get("OPENAI_API_KEY")
    if key and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer {key}"
    asked = {name: getattr(args, name) for name in SAMPLING_FIELDS}
    extra: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if args.ignore_eos:
        extra["ignore_eos"] = True
    return Server(
        base_url=args.base_url or f"http://{host}:{args.port}",
        kind="chat" if chat else "completions",
        endpoint=args.endpoint or f"/v1/{'chat/' if chat else ''}completions",
        model=args.model,
        headers=headers,
        insecure=args.insecure,
        extra_body={**extra, **args.extra_body},
        ready_check_timeout_s=args.ready_check_timeout_sec,
    )


def _load(args: argparse.Namespace) -> Load:
    workload = workload_of(args)
    prompts = args.prompts or ("text" if args.backend == "openai-chat" else "tokens")
    if prompts == "tokens" and args.backend == "openai-chat":
        raise InvalidConfig("prompts", "tokens cannot be put as a chat; text, or --backend openai")
    return Load(
        workload=workload,
        seeds=tuple(args.seed or (workload.seed,)),
        text=prompts == "text",
        max_concurrency=args.max_concurrency,
        num_warmups=args.num_warmups,
        wanted=_wanted(args),
    )


def _wanted(args: argparse.Namespace) -> Wanted:
    metrics = tuple(name.strip() for name in args.percentile_metrics.split(","))
    for name in metrics:
        if name not in METRICS:
            raise InvalidConfig(
                "percentile_metrics", f"{name!r} is none; there are {', '.join(METRICS)}"
            )
    return Wanted(
        metrics=metrics,
        percentiles=_percentiles(args.metric_percentiles),
        goodput=dict(goal(pair) for pair in args.goodput),
    )


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= value <= 100 for value in found):
        raise InvalidConfig(
            "metric_percentiles", f"must be numbers from 0 to 100, as 50,99, not {text!r}"
        )
    return found


def goal(pair: str) -> tuple[str, float]:
    """Of `--goodput`: `ttft:500`. Raises InvalidConfig for what is none."""
    name, _, value = pair.partition(":")
    try:
        most = float(value)
    except ValueError:
        most = -1.0
    if name not in _GOODPUT or not most >= 0:
        raise InvalidConfig(
            "goodput", f"must be like ttft:500 (milliseconds; {', '.join(_GOODPUT)}), not {pair!r}"
        )
    return name, most


def _settings(args: argparse.Namespace, load: Load, measured: Measured) -> dict[str, Any]:
    """What a saved result says of itself; `tokenizer_id` and `rtfx` (of speech) are vLLM's."""
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": measured.model,
        "tokenizer_id": None,
        "num_prompts": measured.result["completed"] + measured.result["failed"],
        **dict(args.metadata),
        **load_settings(args),
        "max_concurrency": args.max_concurrency,
        "rtfx": 0.0,
        "seeds": list(load.seeds),
        "workload": msgspec.to_builtins(msgspec.structs.replace(load.workload, seed=load.seeds[0])),
    }


def _result_directory(args: argparse.Namespace) -> Path | None:
    """The directory of the result, made now and not when all is measured; None: it is not saved."""
    if not (args.save_result or args.append_result):
        for name in ("save_detailed", "result_dir", "result_filename", "metadata", "label"):
            if getattr(args, name):
                raise InvalidConfig(name, "says how to save the result; --save-result does it")
        return None
    directory = Path(args.result_dir or ".").expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig("result_dir", f"{directory}: {error.strerror}") from None
    return directory


def _save(
    args: argparse.Namespace, directory: Path, settings: Mapping[str, Any], measured: Measured
) -> Path:
    model = measured.model.rpartition("/")[2]
    begin = result_name(args.label or args.backend, load_name(args), args.max_concurrency)
    path = directory / (args.result_filename or f"{begin}-{model}-{settings['date']}.json")
    kept = {
        name: value
        for name, value in measured.details.items()
        if args.save_detailed or name not in DETAILS
    }
    line = msgspec.json.encode({**settings, **measured.result, **kept})
    try:
        with path.open("ab" if args.append_result else "wb") as file:
            file.write(b"\n" * (args.append_result and file.tell() > 0) + line)
    except OSError as error:
        raise InvalidConfig("result_filename", f"{path}: {error.strerror}") from None
    return path
