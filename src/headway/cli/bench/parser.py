"""The options of `headway bench`."""

from __future__ import annotations

import argparse
from typing import Any

from headway.cli.bench.comparing import add_sweep_options
from headway.cli.bench.loads import add_load_options
from headway.cli.bench.values import json_object, natural, pair, seconds
from headway.cli.options import add_engine_options, add_model_argument, count
from headway.config import DTYPE_BYTES

__all__ = ["SAMPLING_FIELDS", "add_bench"]

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Fields of a request that `bench serve` has options for."""


def _precision(text: str) -> tuple[str, str]:
    dtype, separator, kv_cache_dtype = text.partition("/")
    if not separator:
        kv_cache_dtype = dtype
    if not {dtype, kv_cache_dtype} <= {"auto", *DTYPE_BYTES}:
        raise ValueError
    return dtype, kv_cache_dtype


_precision.__name__ = "DTYPE[/KV]"


def add_bench(bench: argparse.ArgumentParser) -> None:
    what = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    _add_serve(what)
    _add_offline(what)
    _add_latency(what)
    _add_quality(what)
    _add_scheduler(what)
    _add_sweep(what)


def _add_serve(what: Any) -> None:
    serve = _command(
        what,
        "serve",
        "load for a server with OpenAI's API: TTFT, TPOT, ITL, E2EL, throughput, goodput",
        "Sends requests to a server, ours or any other with OpenAI's API, and tells what its "
        "users would see. Options, definitions and results are those of vllm bench serve; "
        "docs/guide/benchmarking.md says where they differ.",
    )
    _add_server_options(serve.add_argument_group("server"))
    add_load_options(serve.add_argument_group("load"))
    _add_request_options(serve.add_argument_group("requests"))
    _add_result_options(serve.add_argument_group("results"))


def _add_server_options(group: Any) -> None:
    group.add_argument(
        "--backend",
        choices=("openai", "vllm", "openai-chat"),
        default="openai",
        help="openai, vllm: completions; openai-chat: chat (%(default)s)",
    )
    group.add_argument("--base-url", metavar="URL", help="instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="(%(default)s)")
    group.add_argument("--port", type=int, default=8000, help="(%(default)s)")
    group.add_argument(
        "--endpoint",
        metavar="PATH",
        help="default: /v1/completions, with openai-chat /v1/chat/completions",
    )
    group.add_argument("--model", help="its name in the API; default: the first that is listed")
    group.add_argument(
        "--header",
        type=pair,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="goes with every request; $OPENAI_API_KEY goes as Authorization, unless given here",
    )
    group.add_argument("--insecure", action="store_true", help="take any TLS certificate")
    group.add_argument(
        "--ready-check-timeout-sec",
        type=seconds,
        default=0.0,
        metavar="S",
        help="wait so long at most for the server to answer (0: not at all)",
    )


def _add_request_options(group: Any) -> None:
    group.add_argument(
        "--prompts",
        choices=("tokens", "text"),
        help="what prompts are: token ids, of exactly the length asked for on any server that "
        "takes them, or text whose length is fitted to the server's tokenizer; default: tokens, "
        "for chat text",
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of exactly the length; a server may refuse to know the field (on)",
    )
    for name in SAMPLING_FIELDS:
        kind = int if name == "top_k" else float
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            metavar="X",
            help="goes with every request; default: the server's",
        )
    group.add_argument(
        "--extra-body",
        type=json_object,
        default={},
        metavar="JSON",
        help="more fields for the body",
    )


def _add_result_options(group: Any) -> None:
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="NAMES",
        help="what to tell: ttft, tpot, itl, e2el, client_queue_time, "
        "e2el_including_client_queue (%(default)s; vLLM: without e2el)",
    )
    group.add_argument(
        "--metric-percentiles", default="99", metavar="P,P", help="which of each (%(default)s)"
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the requests that stay within all of these: ttft, tpot, e2el, as ttft:500",
    )
    group.add_argument("--save-result", action="store_true", help="write a JSON file")
    group.add_argument("--save-detailed", action="store_true", help="with figures by request")
    group.add_argument(
        "--append-result", action="store_true", help="append to the file, as one more line"
    )
    group.add_argument("--result-dir", metavar="DIR", help="default: the current directory")
    group.add_argument(
        "--result-filename", metavar="FILE", help="default: made of label, rate, model and date"
    )
    group.add_argument("--label", help="begins the file's name; default: the backend")
    group.add_argument(
        "--metadata",
        type=pair,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="goes into the file",
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def _add_offline(what: Any) -> None:
    offline = _command(
        what,
        "offline",
        "throughput without a server, next to what this machine allows",
        "Runs requests that all arrive at once, without a server: output tokens per second, and "
        "how much that is of what the machine's memory and arithmetic allow.",
    )
    add_model_argument(offline)
    group = offline.add_argument_group("load")
    group.add_argument(
        "--num-prompts", type=count, default=64, metavar="N", help="requests (%(default)s)"
    )
    _add_lengths(group)
    _add_outcome_options(offline)


def _add_latency(what: Any) -> None:
    latency = _command(
        what,
        "latency",
        "one sequence alone: prefill, then decode, next to what this machine allows",
        "Runs one request at a time, without a server: how long its prompt and its tokens take.",
    )
    add_model_argument(latency)
    group = latency.add_argument_group("load")
    _add_lengths(group)
    group.add_argument(
        "--num-iters", type=count, default=5, metavar="N", help="requests (%(default)s)"
    )
    group.add_argument(
        "--num-iters-warmup",
        type=natural,
        default=1,
        metavar="N",
        help="requests before that do not count (%(default)s)",
    )
    _add_outcome_options(latency)


def _add_lengths(group: Any) -> None:
    for flag, text in (("--input-len", "of a prompt"), ("--output-len", "of an answer")):
        group.add_argument(
            flag, type=count, default=128, metavar="N", help=f"tokens {text} (%(default)s)"
        )


def _add_outcome_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--profile",
        action="store_true",
        help="run once more and say where the time goes",
    )
    group.add_argument("--output-json", metavar="FILE", help="write the figures there too")
    add_engine_options(parser)


def _add_quality(what: Any) -> None:
    quality = _command(
        what,
        "quality",
        "what precisions cost, in perplexity and greedy tokens, against float32",
        "Has the model foretell texts, token by token, in float32 and in other precisions: the "
        "perplexity, by how much it changes, and how often the likeliest token stays the same.",
    )
    add_model_argument(quality)
    group = quality.add_argument_group("comparison")
    group.add_argument(
        "--text", nargs="+", required=True, metavar="FILE", help="texts to foretell, UTF-8"
    )
    group.add_argument(
        "--precision",
        type=_precision,
        nargs="+",
        default=[("auto", "auto")],
        metavar="DTYPE[/KV]",
        help="of weights and products, and of the KV cache; without /KV the same for both (auto)",
    )
    group.add_argument(
        "--window",
        type=count,
        default=1024,
        metavar="N",
        help="tokens that are foretold one from the other; then it begins anew (%(default)s)",
    )
    group.add_argument(
        "--num-windows", type=count, metavar="N", help="of each text, from its start; default: all"
    )
    group.add_argument("--output-json", metavar="FILE", help="write the figures there too")
    add_engine_options(quality, leave_out=frozenset({"dtype", "kv_cache_dtype", "recipe"}))


def _add_scheduler(what: Any) -> None:
    scheduler = _command(
        what,
        "scheduler",
        "a step by running requests, and a prompt of 32,768 tokens",
        "What scheduling costs: schedule() and apply() by running requests, with prefix caching "
        "on and records kept, and a prompt of 32,768 tokens.",
    )
    scheduler.add_argument(
        "--rounds", type=count, default=50, metavar="N", help="of each figure (%(default)s)"
    )
    scheduler.add_argument("--output-json", metavar="FILE", help="write the figures there too")


def _add_sweep(what: Any) -> None:
    sweep = _command(
        what,
        "sweep",
        "a grid of the server's options and of loads: every point, and which is best",
        "Starts headway serve for each point of a grid, several times, and puts the same load on "
        "each. docs/guide/comparing.md explains the report.",
    )
    sweep.conflict_handler = "resolve"
    add_sweep_options(sweep)


def _command(what: Any, name: str, text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = what.add_parser(name, help=text, description=description)
    parser.set_defaults(command=f"bench.{name}")
    return parser
