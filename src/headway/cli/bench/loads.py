"""The options that say what load to send, and the workload that they come to.

They are those of `vllm bench serve`, and `--workload` for all that these cannot say.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.cli.bench.values import above_zero, natural, share
from headway.cli.options import count
from headway.errors import InvalidConfig
from headway.workload import (
    KINDS,
    Arrivals,
    AtOnce,
    Constant,
    Gamma,
    Length,
    Poisson,
    Ramp,
    SharedPrefix,
    Trace,
    TrafficClass,
    Workload,
    read_workload,
    scaled,
)

__all__ = [
    "add_load_options",
    "arrivals_of",
    "load_name",
    "load_settings",
    "random_workload",
    "workload_of",
]

_DEFAULTS: Mapping[str, Any] = {
    "num_prompts": 100,
    "random_input_len": 1024,
    "random_output_len": 128,
    "random_range_ratio": 0.0,
    "random_prefix_len": 0,
}
_SHORT_NAMES = {"input_len": "random_input_len", "output_len": "random_output_len"}
_ARRIVALS = (
    "request_rate",
    "burstiness",
    "ramp_up_strategy",
    "ramp_up_start_rps",
    "ramp_up_end_rps",
)


def add_load_options(group: Any) -> None:
    group.add_argument(
        "--workload",
        metavar="KIND|FILE",
        help=f"{', '.join(KINDS)}; or JSON that describes the load, or a result, whose load is "
        "sent again; instead of the options up to --ramp-up-end-rps",
    )
    group.add_argument(
        "--dataset-name",
        choices=("random", "azure", "mooncake"),
        help="random prompts, or the requests of a trace in Azure's or Mooncake's format (random)",
    )
    group.add_argument("--dataset-path", metavar="FILE", help="of the trace")
    for flag, kind, metavar, text in _RANDOM:
        group.add_argument(flag, type=kind, metavar=metavar, help=text)
    _add_rates(group)
    group.add_argument(
        "--max-concurrency",
        type=count,
        metavar="N",
        help="requests under way at most: with --request-rate inf, N users in a closed loop",
    )
    group.add_argument(
        "--seed",
        type=natural,
        nargs="+",
        metavar="N",
        help="of lengths, tokens and arrivals; several: one load after the other, and the "
        "results pooled (0, or the workload's)",
    )
    group.add_argument(
        "--num-warmups",
        type=natural,
        default=0,
        metavar="N",
        help="requests before, with prompts of their own, that do not count (%(default)s)",
    )


def _add_rates(group: Any) -> None:
    group.add_argument(
        "--ramp-up-strategy",
        choices=("linear", "exponential"),
        help="how the rate goes from one to the other, from the first request to the last",
    )
    group.add_argument(
        "--ramp-up-start-rps", type=above_zero, metavar="R", help="requests per second at first"
    )
    group.add_argument(
        "--ramp-up-end-rps", type=above_zero, metavar="R", help="requests per second at last"
    )
    for flag, what, of in (
        ("--rate-scale", "rates", "a --workload or a trace"),
        ("--length-scale", "lengths", "whatever the load is"),
    ):
        group.add_argument(
            flag,
            type=above_zero,
            default=1.0,
            metavar="X",
            help=f"the {what} of {of}, times so much (1)",
        )


_RANDOM: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
    ("--num-prompts", count, "N", "requests; of a trace, the first ones (100; vLLM: 1000)"),
    ("--random-input-len", count, "N", "tokens of a prompt (1024)"),
    ("--input-len", count, "N", "the same"),
    ("--random-output-len", count, "N", "tokens of an answer (128)"),
    ("--output-len", count, "N", "the same"),
    (
        "--random-range-ratio",
        share,
        "R",
        "lengths are drawn evenly from [len · (1 - R), len · (1 + R)] (0)",
    ),
    ("--random-prefix-len", natural, "N", "tokens before each prompt, the same in all (0)"),
    ("--request-rate", above_zero, "R", "requests per second; inf: all at once (inf)"),
    (
        "--burstiness",
        above_zero,
        "B",
        "of their arrivals: 1 is Poisson, below comes in bursts, above is more even, inf is "
        "regular (1)",
    ),
)
"""Options that describe a random load; none has a default here, so that it is known whether it
was given beside --workload."""


def workload_of(args: argparse.Namespace) -> Workload:
    """What the options describe. Raises InvalidConfig for an option that another one leaves nothing
    to say, and for a file that makes no sense."""
    given = {
        _SHORT_NAMES.get(name, name): value
        for name in (*_DEFAULTS, *_SHORT_NAMES)
        if (value := getattr(args, name)) is not None
    }
    when = [name for name in _ARRIVALS if getattr(args, name) is not None]
    if args.workload is not None:
        files = [
            name for name in ("dataset_name", "dataset_path") if getattr(args, name) is not None
        ]
        for name in (*given, *when, *files):
            raise InvalidConfig(name, f"is the workload's to say, and {args.workload} is given")
        found = read_workload(args.workload)
    elif args.dataset_name in ("azure", "mooncake"):
        count = given.pop("num_prompts", _DEFAULTS["num_prompts"])
        for name in (*given, *when):
            raise InvalidConfig(
                name, "is the trace's to say; --rate-scale and --length-scale fit it to a server"
            )
        found = _trace_workload(args, count)
    else:
        if args.dataset_path is not None:
            raise InvalidConfig("dataset_path", "needs --dataset-name azure or mooncake")
        if args.rate_scale != 1 and when:
            raise InvalidConfig(
                "rate_scale", "is for a --workload or a trace; here the rate itself can be said"
            )
        found = random_workload(**{**_DEFAULTS, **given}, arrivals=arrivals_of(args))
    return scaled(found, rate=args.rate_scale, length=args.length_scale)


def _trace_workload(args: argparse.Namespace, count: int) -> Workload:
    if args.dataset_path is None:
        raise InvalidConfig("dataset_path", f"must say where the {args.dataset_name} trace is")
    path = Path(args.dataset_path).expanduser().resolve()
    trace = Trace(
        name=args.dataset_name, path=str(path), format=args.dataset_name, num_prompts=count
    )
    return Workload(traces=(trace,))


def random_workload(
    *,
    num_prompts: int,
    random_input_len: int,
    random_output_len: int,
    random_range_ratio: float,
    random_prefix_len: int,
    arrivals: Arrivals,
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
        arrivals=arrivals,
        shared_prefix=SharedPrefix(random_prefix_len) if random_prefix_len else None,
    )
    return Workload(classes=(kind,))


def arrivals_of(args: argparse.Namespace) -> Arrivals:
    """By the options of rates. Raises InvalidConfig for those that do not go together."""
    rate, burstiness = args.request_rate, args.burstiness
    if args.ramp_up_strategy is not None:
        return _ramp(args)
    for name in ("ramp_up_start_rps", "ramp_up_end_rps"):
        if getattr(args, name) is not None:
            raise InvalidConfig(name, "needs --ramp-up-strategy linear or exponential")
    if rate is None or math.isinf(rate):
        if burstiness is not None:
            raise InvalidConfig("burstiness", "needs a --request-rate, or a ramp")
        return AtOnce()
    burstiness = 1.0 if burstiness is None else burstiness
    if math.isinf(burstiness):
        return Constant(1 / rate)
    return Poisson(rate) if burstiness == 1 else Gamma(rate, burstiness)


def _ramp(args: argparse.Namespace) -> Ramp:
    if args.request_rate is not None:
        raise InvalidConfig("request_rate", "is the ramp's to say, by --ramp-up-start-rps and -end")
    for name in ("ramp_up_start_rps", "ramp_up_end_rps"):
        if not math.isfinite(getattr(args, name) or math.inf):
            raise InvalidConfig(name, "must be a finite rate: the ramp goes from one to another")
    burstiness = 1.0 if args.burstiness is None else args.burstiness
    if math.isinf(burstiness):
        raise InvalidConfig("burstiness", "must be finite in a ramp")
    return Ramp(
        rate_from=args.ramp_up_start_rps,
        rate_to=args.ramp_up_end_rps,
        shape=args.ramp_up_strategy,
        burstiness=burstiness,
    )


def load_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a saved result says of the load by vLLM's keys; None where they do not describe it."""
    if args.workload is not None or args.dataset_name in ("azure", "mooncake"):
        return {"request_rate": None, "burstiness": None}
    rate, burstiness = args.request_rate, args.burstiness
    found = {
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "burstiness": 1.0 if burstiness is None else burstiness,
    }
    if args.ramp_up_strategy is not None:
        names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
        found |= {name: getattr(args, name) for name in names}
    return found


def load_name(args: argparse.Namespace) -> str:
    """In the name of a result's file."""
    if args.workload is not None:
        return Path(args.workload).stem
    if args.ramp_up_strategy is not None:
        begin, end = args.ramp_up_start_rps, args.ramp_up_end_rps
        return f"ramp-up-{args.ramp_up_strategy}-{begin}qps-{end}qps"
    if args.dataset_name in ("azure", "mooncake"):
        return str(args.dataset_name)
    return f"{load_settings(args)['request_rate']}qps"
