"""`headway bench serve`: load for a server, and what its users would see."""

from __future__ import annotations

import argparse
import math
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
from headway.cli.bench.parser import SAMPLING_FIELDS
from headway.cli.terminal import Terminal
from headway.engine.collector import calm_collector
from headway.errors import InvalidConfig
from headway.workload import (
    Arrivals,
    AtOnce,
    Constant,
    Gamma,
    Length,
    Poisson,
    SharedPrefix,
    TrafficClass,
    Workload,
    read_workload,
)

__all__ = ["random_workload", "run"]

_GOODPUT = ("ttft", "tpot", "e2el")
_RANDOM_DEFAULTS: Mapping[str, Any] = {
    "num_prompts": 100,
    "random_input_len": 1024,
    "random_output_len": 128,
    "random_range_ratio": 0.0,
    "random_prefix_len": 0,
    "request_rate": math.inf,
    "burstiness": 1.0,
}
_SHORT_NAMES = {"input_len": "random_input_len", "output_len": "random_output_len"}


def run(args: argparse.Namespace) -> None:
    terminal = Terminal()
    server, load = _server(args), _load(args)
    directory = _result_directory(args)
    calm_collector()
    measured = measure_server(
        server, load, say=terminal.say, progress=not args.disable_tqdm and sys.stderr.isatty()
    )
    settings = _settings(args, load, measured.model)
    shown = {**settings, **measured.result}
    for line in report(shown, load.wanted):
        terminal.write(line + "\n")
    shared = any(kind.shared_prefix is not None for kind in load.workload.classes)
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
    given = {
        _SHORT_NAMES.get(name, name): value
        for name in (*_RANDOM_DEFAULTS, *_SHORT_NAMES)
        if (value := getattr(args, name)) is not None
    }
    if args.workload is None:
        workload = random_workload(**{**_RANDOM_DEFAULTS, **given})
    else:
        workload = read_workload(args.workload)
        for name in given:
            raise InvalidConfig(name, f"is the workload's to say, and {args.workload} is given")
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


def random_workload(
    *,
    num_prompts: int,
    random_input_len: int,
    random_output_len: int,
    random_range_ratio: float,
    random_prefix_len: int,
    request_rate: float,
    burstiness: float,
) -> Workload:
    """What the options of vLLM's random data set describe. A prefix comes before the prompt."""

    def around(length: int, more: int = 0) -> Length:
        low = max(1, math.floor(length * (1 - random_range_ratio)))
        high = math.ceil(length * (1 + random_range_ratio))
        return length + more if random_range_ratio == 0 else (low + more, high + more)

    kind = TrafficClass(
        name="random",
        num_prompts=num_prompts,
        input_len=around(random_input_len, random_prefix_len),
        output_len=around(random_output_len),
        arrivals=_arrivals(request_rate, burstiness),
        shared_prefix=SharedPrefix(random_prefix_len) if random_prefix_len else None,
    )
    return Workload(classes=(kind,))


def _arrivals(rate: float, burstiness: float) -> Arrivals:
    if math.isinf(rate):
        return AtOnce()
    if math.isinf(burstiness):
        return Constant(1 / rate)
    return Poisson(rate) if burstiness == 1 else Gamma(rate, burstiness)


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
        goodput=dict(_goal(pair) for pair in args.goodput),
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


def _goal(pair: str) -> tuple[str, float]:
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


def _settings(args: argparse.Namespace, load: Load, model: str) -> dict[str, Any]:
    """What a saved result says of itself; `tokenizer_id` and `rtfx` (of speech) are vLLM's."""
    rate, burstiness = args.request_rate, args.burstiness
    if args.workload is None:
        rate = _RANDOM_DEFAULTS["request_rate"] if rate is None else rate
        burstiness = _RANDOM_DEFAULTS["burstiness"] if burstiness is None else burstiness
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": None,
        "num_prompts": sum(kind.num_prompts for kind in load.workload.classes),
        **dict(args.metadata),
        "request_rate": "inf" if rate == math.inf else rate,
        "burstiness": burstiness,
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
    sent = f"{settings['request_rate']}qps" if args.workload is None else Path(args.workload).stem
    begin = result_name(args.label or args.backend, sent, args.max_concurrency)
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
