"""A diagnosis for people, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from headway.doctor.diagnosis import worst
from headway.doctor.figures import figures
from headway.doctor.finding import Figures, Finding, Severity
from headway.doctor.readings import Window
from headway.doctor.rules.wording import amount, percent, seconds
from headway.doctor.series import Series

__all__ = ["as_json", "as_lines", "finding_lines", "summary", "verdict"]

_WIDTH = 100
_INDENT = 10


def verdict(findings: Sequence[Finding]) -> str:
    """One line: healthy, or how much is wrong."""
    wrong = [finding for finding in findings if finding.severity >= Severity.WARNING]
    if wrong:
        return f"{worst(findings).name.lower()}: {', '.join(_names(wrong))}"
    if any(finding.name == "no_traffic" for finding in findings):
        return "healthy, as far as that can be told without traffic"
    return "healthy"


def as_json(series: Sequence[Series], findings: Sequence[Finding]) -> dict[str, Any]:
    """Names in it are stable; docs/guide/doctor.md has them."""
    return {
        "verdict": "healthy"
        if worst(findings) < Severity.WARNING
        else worst(findings).name.lower(),
        "engines": [
            {
                "name": window.series.name,
                "source": window.series.source,
                "engine": window.series.engine,
                "flavour": window.series.flavour,
                "window_s": window.duration_s,
                "num_samples": window.num_samples,
                "figures": dict(figures(window)),
            }
            for window in map(Window, series)
        ],
        "findings": [_finding(each) for each in findings if each.severity >= Severity.INFO],
        "passed": [_finding(each) for each in findings if each.severity is Severity.OK],
        "not_judged": [
            {"name": each.name, "engine": each.source, "why": each.what}
            for each in findings
            if each.severity is Severity.UNKNOWN
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "severity": finding.severity.name.lower(),
        "engine": finding.source,
        "what": finding.what,
        "cause": finding.cause,
        "advice": list(finding.advice),
        "figures": dict(finding.figures),
        "thresholds": dict(finding.thresholds),
    }


def as_lines(series: Sequence[Series], findings: Sequence[Finding]) -> list[str]:
    """The report: each engine with what was seen of it, then what is of all together."""
    lines = []
    for each in series:
        window = Window(each)
        lines.append(
            f"{each.name}: {seconds(window.duration_s)}, {window.num_samples} samples"
            if window.num_samples
            else f"{each.name}: told nothing"
        )
        lines += _wrapped(summary(figures(window)), 2)
        lines.append("")
        lines += finding_lines([finding for finding in findings if finding.source == each.name])
    together = [finding for finding in findings if not finding.source]
    if together:
        lines += ["all engines", "", *finding_lines(together)]
    return [*lines, verdict(findings)]


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """What is wrong in full, then what is not, and what could not be judged."""
    lines = []
    for finding in sorted(findings, key=lambda each: -each.severity):
        if finding.severity >= Severity.INFO:
            lines += [*_in_full(finding), ""]
    passed = [finding for finding in findings if finding.severity is Severity.OK]
    unknown = [finding for finding in findings if finding.severity is Severity.UNKNOWN]
    for finding in passed:
        lines += _labelled("ok", f"{finding.name}: {finding.what}")
    for why in dict.fromkeys(finding.what for finding in unknown):
        names = ", ".join(finding.name for finding in unknown if finding.what == why)
        lines += _labelled("unknown", f"{names}: {why}")
    return [*lines, ""] if passed or unknown else lines


def _in_full(finding: Finding) -> Iterator[str]:
    yield from _labelled(finding.severity.name.lower(), f"{finding.name}: {finding.what}")
    yield from _wrapped(f"likely cause: {finding.cause}", _INDENT)
    for advice in finding.advice:
        yield from _wrapped(f"- {advice}", _INDENT)


def _labelled(label: str, text: str) -> list[str]:
    lines = _wrapped(text, _INDENT)
    return [label.ljust(_INDENT) + lines[0].lstrip(), *lines[1:]]


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 * text.startswith("- ")),
        break_long_words=False,
        break_on_hyphens=False,
    )


def summary(found: Figures) -> str:
    """The figures that are there, in a line."""
    parts = []
    for label, name in (("running", "running_mean"), ("waiting", "waiting_mean")):
        if (value := found[name]) is not None:
            parts.append(f"{label} {amount(round(value, 1))}")
    for label, name in (("KV", "kv_usage_mean"), ("hit rate", "hit_rate")):
        if (value := found[name]) is not None:
            parts.append(f"{label} {percent(value)}")
    for label, name in (
        ("requests/s", "requests_per_s"),
        ("prompt tok/s", "prompt_tokens_per_s"),
        ("output tok/s", "output_tokens_per_s"),
    ):
        if (value := found[name]) is not None:
            parts.append(f"{amount(round(value, 1))} {label}")
    for label, name in (("TTFT", "ttft"), ("ITL", "itl")):
        median, tail = (found[f"{name}_p{share}_s"] for share in (50, 99))
        if median is not None and tail is not None:
            parts.append(f"{label} p50 {seconds(median)}, p99 {seconds(tail)}")
    return " · ".join(parts)


def _names(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.name for finding in findings))
