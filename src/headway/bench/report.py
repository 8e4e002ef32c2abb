"""Results of `headway bench serve`, for people and for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.bench.figures import METRICS, Wanted, percentile_key

__all__ = ["DETAILS", "is_late", "notes", "report", "result_name"]

DETAILS = (
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
    "class_names",
    "failed_after",
)
"""What a saved result has by request only where it is asked for; as in vLLM, `latencies` and
`queue_times` are there always."""

_WIDTH = 50
_LATE_MS = 10.0
_LATE_SHARE = 0.05
"""Of the median TTFT: the client's lateness begins to matter where it is more."""
_MOST_ERRORS = 5


def report(result: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """Lines, laid out as vLLM's."""
    lines = [_title("Serving Benchmark Result", "=")]
    lines += [_line(label, result[key]) for label, key in _TOTALS if result.get(key) is not None]
    for metric in wanted.metrics:
        lines.append(_title(METRICS[metric], "-"))
        lines += _metric_lines(metric, result, wanted)
    if classes := result.get("classes"):
        lines.append(_title("By class", "-"))
        lines += _class_table(classes, wanted)
    lines.append(_title("Client", "-"))
    lines += [
        _line(f"{what} lateness (ms):", result[f"{key}_lateness_ms"])
        for what, key in (("Mean", "mean"), ("P99", "p99"), ("Max", "max"))
    ]
    return [*lines, "=" * _WIDTH]


_TOTALS = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Cached input tokens:", "total_cached_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
    ("Tokens per chunk:", "tokens_per_chunk"),
    ("Tokens counted by:", "token_counts"),
)


def notes(result: Mapping[str, Any], *, shared_prefixes: bool) -> list[str]:
    """What a reader must know before he believes the figures."""
    found = [
        f"failed, {count} times: {error}"
        for error, count in sorted(result["error_counts"].items(), key=lambda item: -item[1])
    ]
    if len(found) > _MOST_ERRORS:
        found[_MOST_ERRORS:] = [f"and {len(found) - _MOST_ERRORS} other errors"]
    if is_late(result):
        found.append(
            "the client was late: one request in a hundred was sent "
            f"{result['p99_lateness_ms']:.0f} ms or more after it was due, so the load was not "
            "quite what was asked for"
        )
    found += _about_the_load(result)
    own = result["frame_tokens"] * result["completed"]
    if (result["total_cached_tokens"] or 0) > own and not shared_prefixes:
        found.append(
            f"{result['total_cached_tokens']:,} prompt tokens were in the server's prefix cache: "
            "it has seen this seed; another --seed, or a fresh server, measures all the work"
        )
    if result["wrong_input_lens"]:
        found.append(
            f"{result['wrong_input_lens']} prompts were not of the length asked for, as the server "
            "counts (it may have put a token before them)"
        )
    if result["short_outputs"]:
        found.append(f"{result['short_outputs']} answers were shorter than asked for")
    if result["token_counts"] != "usage":
        found.append("the server does not tell the usage: a chunk is taken for a token")
    return found


def is_late(result: Mapping[str, Any]) -> bool:
    """Whether the client's own lateness counts beside the latencies that it measured."""
    late, ttft = result.get("p99_lateness_ms") or 0.0, result.get("median_ttft_ms") or 0.0
    return bool(late > max(_LATE_MS, _LATE_SHARE * ttft))


def _about_the_load(result: Mapping[str, Any]) -> list[str]:
    found = []
    if result.get("saturated"):
        found.append(_too_much(result["saturation"]))
    for trace in result.get("traces", ()):
        if said := _scaling(trace, result["frame_tokens"]):
            found.append(f"the trace {trace['name']} was scaled: {said}")
    if result["made_up_answers"]:
        found.append(
            f"{result['made_up_answers']} prompts hold made-up answers where the server's own "
            "should stand: it tells no token ids (return_token_ids)"
        )
    return found


def _too_much(signs: Mapping[str, Any]) -> str:
    """From `Saturation`."""
    said = ["the server did not keep up"]
    if signs["refused_share"]:
        said.append(
            f"it refused {signs['refused_share']:.0%} of the requests, and the latencies are those "
            "of the others"
        )
    if signs["queue_grows"]:
        said.append(
            "the figures describe a queue that grows, and not the server: from the first third of "
            "the requests to the last, those under way went from "
            f"{signs['first_concurrency']:.1f} to {signs['last_concurrency']:.1f}, the median TTFT "
            f"from {signs['first_ttft_ms']:.0f} to {signs['last_ttft_ms']:.0f} ms"
        )
    came, served = signs["arrival_rate"], signs["served_rate"]
    said.append(f"{came:.2f} requests/s came, and {served:.2f} were served")
    return "; ".join(said)


def _scaling(trace: Mapping[str, Any], frame: int) -> str:
    said = [
        f"{what} times {trace[key]:g}"
        for what, key in (("rate", "rate_scale"), ("lengths", "length_scale"))
        if trace[key] != 1
    ]
    said += [
        f"{trace[key]:,} of {trace['requests']:,} {what} cut"
        for what, key in (("prompts", "cut_inputs"), ("answers", "cut_outputs"))
        if trace[key]
    ]
    if longer := trace["lengthened_inputs"]:
        said.append(
            f"{longer:,} of {trace['requests']:,} prompts lengthened to {frame + 1} tokens, the "
            "fewest that a text has there"
        )
    return ", ".join(said)


def result_name(label: str, load: str, max_concurrency: int | None) -> str:
    """The beginning of a result's file name, as vLLM makes it; `load` is a rate as `2.0qps`, or a
    workload's name."""
    return f"{label}-{load}" + ("" if max_concurrency is None else f"-concurrency{max_concurrency}")


def _title(text: str, fill: str) -> str:
    return f" {text} ".center(_WIDTH, fill)


def _line(label: str, value: object) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40} {shown:<10}".rstrip()


def _statistic_keys(wanted: Wanted) -> list[tuple[str, str]]:
    """What a person reads, and the beginning of the key."""
    percentiles = [percentile_key(each) for each in wanted.percentiles]
    return [
        ("Mean", "mean"),
        ("Median", "median"),
        ("Std", "std"),
        *((f"P{each}", f"p{each}") for each in percentiles),
    ]


def _metric_lines(metric: str, result: Mapping[str, Any], wanted: Wanted) -> list[str]:
    name = _short(metric)
    return [
        _line(f"{what} {name} (ms):", _or_dash(result[f"{key}_{metric}_ms"]))
        for what, key in _statistic_keys(wanted)
    ]


def _class_table(classes: Mapping[str, Mapping[str, Any]], wanted: Wanted) -> list[str]:
    keys = _statistic_keys(wanted)
    rows = [["class", "completed", "failed", "ms", *(what for what, _ in keys)]]
    for name, result in classes.items():
        for metric in wanted.metrics:
            values = [_or_dash(result[f"{key}_{metric}_ms"]) for _, key in keys]
            counts = [str(result["completed"]), str(result["failed"])]
            shown = [value if isinstance(value, str) else f"{value:.1f}" for value in values]
            rows.append([name, *counts, _short(metric), *shown])
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in (0, 3) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(metric: str) -> str:
    """As vLLM prints it: `TTFT`, `Client Queue Time`."""
    return {
        "client_queue_time": "Client Queue Time",
        "e2el_including_client_queue": "E2EL incl. Client Queue",
    }.get(metric, metric.upper())


def _or_dash(value: float | None) -> float | str:
    return "–" if value is None else value
